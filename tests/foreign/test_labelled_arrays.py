"""Objects of xarray with active arrays, beside finite differences; objects of pandas, which hold none."""

import numpy
import pytest

import ampi
import ampi.numpy as np


def differences(f, x):
    """Central differences of a real function."""
    gradient = numpy.zeros_like(x)
    for index in numpy.ndindex(x.shape):
        values = []
        for h in (1e-6, -1e-6):
            moved = x.copy()
            moved[index] += h
            values.append(float(numpy.asarray(f(np.array(moved)))))
        gradient[index] = (values[0] - values[1]) / 2e-6
    return gradient


def labelled(u):
    xarray = pytest.importorskip("xarray")
    return xarray.DataArray(
        u, dims=("y", "x"), coords={"x": [1.0, 2.0, 4.0], "name": ("y", ["a", "b"])}, attrs={"units": "m"}, name="depth"
    )


STEPS = {
    "scaled": lambda a: a * 2.0 - 1.0,
    "squared": lambda a: 0.5 * a**2,
    "product": lambda a: a * a.isel(x=0),
    "centred": lambda a: a - a.mean("x"),
    "sine": lambda a: numpy.sin(a),
    "selected": lambda a: a.isel(x=slice(None, None, -1)),
    "where": lambda a: a.where(a > 0.3, 0.25),
    "clip": lambda a: a.clip(-0.5, 1.0),
    "aligned": lambda a: a + a.isel(x=slice(0, 3)),
    "shifted": lambda a: a.shift(x=1, fill_value=0.5),
    "rolled": lambda a: a.roll(x=1),
    "cumulative": lambda a: a.cumsum("x"),
    "transposed": lambda a: a.T.transpose("y", "x"),
    "differentiated": lambda a: (
        a.differentiate("y") if "y" in a.coords else a.assign_coords(y=[0.0, 1.0]).differentiate("y")
    ),
    "rolling": lambda a: a.rolling(x=2, min_periods=1).sum(),
    "ufunc": lambda a: xr().apply_ufunc(numpy.arctan, a, keep_attrs=True),
    "dataset": lambda a: xr().Dataset({"a": a, "b": a * 2.0}).assign(c=lambda d: 0.1 * d.a * d.b).c,
    "values": lambda a: a.copy(data=0.3 * a.values * a.data),
    "copied": lambda a: a.copy(deep=True),
    "joined": lambda a: xr().concat([a, a * 3.0], "x").isel(x=slice(1, 4)).assign_coords(x=[1.0, 2.0, 4.0]),
    "grouped": lambda a: a.groupby("name").map(lambda part: part - part.sum()),
    "filled": lambda a: a.fillna(0.0),
}
ENDS = {
    "sum": lambda a: a.sum(),
    "mean": lambda a: (a**2).mean(),
    "values": lambda a: np.sum(a.values**2),
    "data": lambda a: np.sum(np.exp(-a.data)),
    "norm": lambda a: np.sqrt((a * a).sum().values),
    "weighted": lambda a: a.dot(a).data,
    "item": lambda a: a.isel(x=1, y=0).data * 3.0,
}


def xr():
    return pytest.importorskip("xarray")


def check_seed(seed):
    xr()
    rng = numpy.random.default_rng(seed)
    steps = [str(name) for name in rng.choice(list(STEPS), rng.integers(1, 5))]
    end = str(rng.choice(list(ENDS)))
    x = rng.normal(size=(2, 3))

    def program(u):
        a = labelled(u)
        for name in steps:
            a = STEPS[name](a)
        found = ENDS[end](a)
        return found

    found = ampi.grad(program)(x)
    expected = differences(program, x)
    size = max(1.0, abs(expected).max())
    numpy.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * size, err_msg=f"{steps} {end}")


@pytest.mark.parametrize("seed", range(12))
def test_drawn_programs(seed):
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 300))
def test_many_drawn_programs(seed):
    check_seed(seed)


def test_labels_go_in_and_come_out():
    a = labelled(numpy.arange(1.0, 7.0).reshape(2, 3))
    value, gradient = ampi.value_and_grad(lambda a: (a.sel(x=2.0) ** 2).sum())(a)
    assert float(value) == 29.0 and not hasattr(value, "dims")
    assert gradient.identical(a.copy(data=[[0.0, 4.0, 0.0], [0.0, 10.0, 0.0]]))
    assert type(gradient.data) is numpy.ndarray and a.data[0, 1] == 2.0
    dataset = xr().Dataset({"a": a, "count": ("x", [1, 2, 3])}, attrs={"title": "t"})
    (by_set, by_list), plain = ampi.grad(
        lambda both, w: (both[0].a * both[0]["count"] * both[1][0] * w).sum(), argnums=(0, 1)
    )((dataset, [2.0 * a]), numpy.float64(0.5))
    assert by_set.attrs == {"title": "t"} and by_set["count"].identical(dataset["count"])
    assert by_set.a.identical(dataset.a.copy(data=a.data * [1, 2, 3])) and by_list[0].dims == a.dims
    assert float(plain) == float((2 * a**2 * [1, 2, 3]).sum())


def test_messages_of_labelled_arrays():
    a = labelled(numpy.ones((2, 3)))

    def program(a):
        whole = np.zeros((2, 3))
        ampi.COMM_SELF.Allreduce((a * 2.0).values, whole)
        return (a.copy(data=whole) ** 2).sum()

    assert (ampi.grad(program)(a) == 8.0).all()


PANDAS = {
    "frame": lambda pandas, u: pandas.DataFrame(u),
    "frame of columns": lambda pandas, u: pandas.DataFrame({"a": u[0], "b": u[1]}),
    "frame by keyword": lambda pandas, u: pandas.DataFrame(data=u),
    "series": lambda pandas, u: pandas.Series(u[0]),
    "column": lambda pandas, u: pandas.DataFrame({"a": numpy.ones(3)}).__setitem__("b", u[0]),
    "assigned": lambda pandas, u: pandas.DataFrame({"a": numpy.ones(3)}).assign(b=u[0]),
    "inserted": lambda pandas, u: pandas.DataFrame({"a": numpy.ones(3)}).insert(0, "b", u[0]),
    "element": lambda pandas, u: pandas.Series(numpy.ones(3)).__setitem__(0, u[0, 0]),
}


@pytest.mark.parametrize("name", PANDAS)
def test_pandas_refuses_active_arrays_by_name(name):
    pandas = pytest.importorskip("pandas")

    def program(u):
        PANDAS[name](pandas, u)
        return np.sum(u)

    with pytest.raises(
        ampi.ActivityError, match=r"test_labelled_arrays.py:\d+: pandas\.(DataFrame|Series).*to_numpy\(\)"
    ):
        ampi.grad(program)(numpy.ones((2, 3)))
    program(numpy.ones((2, 3)))


@pytest.mark.parametrize("by", ["product", "sum", "exponential", "assignment"])
def test_pandas_objects_beside_active_arrays(by):
    """A derivative, or an error by name."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(numpy.arange(1.0, 7.0).reshape(2, 3), columns=list("abc"))
    programs = {
        "product": lambda u: np.sum(u * frame),
        "sum": lambda u: np.sum(np.add(frame, u)),
        "exponential": lambda u: np.sum(np.exp(u) + frame["a"]),
        "assignment": lambda u: frame.iloc.__setitem__(0, u[0]),
    }
    with pytest.raises(ampi.ActivityError, match="pandas"):
        ampi.grad(programs[by])(numpy.ones((2, 3)))


def test_pandas_in_and_out():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=["k", "l"])

    def program(columns):
        return np.sum(columns["a"] ** 2 * frame["b"].to_numpy())

    gradient = ampi.grad(program)({name: frame[name].to_numpy() for name in frame})
    expected = pandas.DataFrame({"a": [6.0, 16.0], "b": [0.0, 0.0]}, index=["k", "l"])
    pandas.testing.assert_frame_equal(pandas.DataFrame(gradient, index=frame.index), expected)
