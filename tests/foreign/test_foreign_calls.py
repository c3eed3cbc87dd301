"""Compiled functions of other packages: active arrays that they are given are an error, or differentiated by a rule."""

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.base import checks
from ampi.rules.known_packages import KNOWN

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler"),
    pytest.mark.skipif(not checks.intercepts, reason="nothing is redirected"),
]

SOURCE = r"""
#include <Python.h>
#include <numpy/arrayobject.h>

static PyObject *sum_of(PyObject *x) {  /* as compiled code does: it looks into the array, and asks for nothing */
    if (PyTuple_Check(x) || PyList_Check(x)) x = PySequence_Fast_GET_ITEM(x, 0);
    if (PyDict_Check(x)) x = PyDict_GetItemString(x, "x");
    if (!x || !PyArray_Check(x)) return PyFloat_FromDouble(-1.0);
    double sum = 0.0, *data = PyArray_DATA((PyArrayObject *)x);
    for (npy_intp i = 0; i < PyArray_SIZE((PyArrayObject *)x); i++) { sum += data[i]; data[i] += 0.0; }
    return PyFloat_FromDouble(sum);
}
static PyObject *object_(PyObject *m, PyObject *x) { return sum_of(x); }
static PyObject *args_(PyObject *m, PyObject *a) { return sum_of(PyTuple_GET_ITEM(a, 0)); }
static PyObject *keywords_(PyObject *m, PyObject *a, PyObject *k) {
    return sum_of(PyTuple_GET_SIZE(a) ? PyTuple_GET_ITEM(a, 0) : PyDict_GetItemString(k, "x")); }
static PyObject *fast_(PyObject *m, PyObject *const *a, Py_ssize_t n) { return sum_of(a[0]); }
static PyObject *fastkw_(PyObject *m, PyObject *const *a, Py_ssize_t n, PyObject *k) { return sum_of(a[0]); }
static PyObject *nothing_(PyObject *m, PyObject *x) { Py_RETURN_NONE; }
static PyMethodDef functions[] = {
    {"by_object", object_, METH_O}, {"by_tuple", args_, METH_VARARGS},
    {"by_keywords", (PyCFunction)keywords_, METH_VARARGS | METH_KEYWORDS},
    {"fast", (PyCFunction)fast_, METH_FASTCALL}, {"fast_keywords", (PyCFunction)fastkw_, METH_FASTCALL | METH_KEYWORDS},
    {"nothing", nothing_, METH_O}, {NULL}};

typedef struct { PyObject_HEAD double last; } Thing;
static int init_(PyObject *self, PyObject *a, PyObject *k) {
    if (PyTuple_GET_SIZE(a)) {
        PyObject *f = sum_of(PyTuple_GET_ITEM(a, 0));
        ((Thing *)self)->last = PyFloat_AsDouble(f); Py_DECREF(f); }
    return 0; }
static int store_(PyObject *self, PyObject *key, PyObject *x) {
    PyObject *f = sum_of(x); ((Thing *)self)->last = PyFloat_AsDouble(f); Py_DECREF(f); return 0; }
static PyMappingMethods mapping = {NULL, NULL, store_};
static PyMethodDef methods[] = {
    {"by_object", object_, METH_O}, {"fast", (PyCFunction)fast_, METH_FASTCALL},
    {"of_class", (PyCFunction)args_, METH_VARARGS | METH_CLASS},
    {"static", (PyCFunction)args_, METH_VARARGS | METH_STATIC},
    {NULL}};
static PyTypeObject type = {PyVarObject_HEAD_INIT(NULL, 0) .tp_name = "foreign_things.Thing",
    .tp_basicsize = sizeof(Thing),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew, .tp_init = init_, .tp_call = keywords_,
    .tp_as_mapping = &mapping, .tp_methods = methods};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "foreign_things", NULL, -1, functions};
PyMODINIT_FUNC PyInit_foreign_things(void) {
    import_array();
    PyType_Ready(&type);
    PyObject *m = PyModule_Create(&module);
    Py_INCREF(&type); PyModule_AddObject(m, "Thing", (PyObject *)&type);
    return m; }
"""

PYF = """python module foreign_kern
interface
subroutine square(x, y, n)
intent(c) square
fortranname square
integer, intent(hide), depend(x) :: n = len(x)
double precision, intent(in) :: x(n)
double precision, intent(out) :: y(n)
end subroutine
subroutine scale(x, n)
intent(c) scale
fortranname scale
integer, intent(hide), depend(x) :: n = len(x)
double precision, intent(inout) :: x(n)
end subroutine
end interface
end python module
"""
KERNELS = """
void square(double *x, double *y, int *n) { for (int i = 0; i < *n; i++) y[i] = x[i] * x[i]; }
void scale(double *x, int *n) { for (int i = 0; i < *n; i++) x[i] *= 2.0; }
"""


def build(folder, name, sources, *more):
    target = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = [f"-I{numpy.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    command = ["gcc", "-shared", "-fPIC", "-w", "-O1", *include, *more, *map(str, sources), "-o", str(target)]
    subprocess.run(command, cwd=folder, check=True)
    spec = importlib.util.spec_from_file_location(name, target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "things.c").write_text(SOURCE)
    yield build(folder, "foreign_things", ["things.c"])
    sys.modules.pop("foreign_things", None)


@pytest.fixture(scope="module")
def kern(tmp_path_factory):
    folder = tmp_path_factory.mktemp("f2py")
    (folder / "k.pyf").write_text(PYF)
    (folder / "k.c").write_text(KERNELS)
    env = {name: value for name, value in os.environ.items() if "PMI" not in name}
    subprocess.run([sys.executable, "-m", "numpy.f2py", "k.pyf"], cwd=folder, env=env, capture_output=True, check=True)
    src = os.path.join(os.path.dirname(numpy.f2py.__file__), "src")
    (made,) = glob.glob(str(folder / "*module.c"))
    yield build(folder, "foreign_kern", [made, f"{src}/fortranobject.c", "k.c"], f"-I{src}")
    del sys.modules["foreign_kern"]


CALLS = {
    "object": lambda m, x: m.by_object(x),
    "tuple": lambda m, x: m.by_tuple(x),
    "keywords": lambda m, x: m.by_keywords(x=x),
    "keywords by position": lambda m, x: m.by_keywords(x),
    "fast": lambda m, x: m.fast(x),
    "fast keywords": lambda m, x: m.fast_keywords(x),
    "method": lambda m, x: m.Thing().by_object(x),
    "fast method": lambda m, x: m.Thing().fast(x),
    "method by its class": lambda m, x: m.Thing.by_object(m.Thing(), x),
    "class method": lambda m, x: m.Thing.of_class(x),
    "static method": lambda m, x: m.Thing.static(x),
    "constructor": lambda m, x: m.Thing(x),
    "constructor of a derived class": lambda m, x: type("Derived", (m.Thing,), {})(x),
    "super": lambda m, x: type("D", (m.Thing,), {"__init__": lambda self, x: super(type(self), self).__init__(x)})(x),
    "call": lambda m, x: m.Thing()(x),
    "item": lambda m, x: m.Thing().__setitem__(0, x),
}
FORMS = {
    "array": lambda x: x * 1.0,
    "view": lambda x: x[1:],
    "strided": lambda x: x[::2],
    "transposed": lambda x: x.reshape(2, 2).T,
    "0-d": lambda x: np.sum(x * x),
    "element": lambda x: x[0],
    "list": lambda x: [x, 1],
    "nested": lambda x: [[x]],
    "dictionary": lambda x: {"x": x},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", CALLS)
def test_active_arrays_are_refused_and_others_pass(things, call, form):
    x0 = numpy.arange(4.0)
    expected = CALLS[call](things, FORMS[form](x0))
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        with pytest.raises(ampi.ActivityError, match=r"test_foreign_calls\.py:\d+: foreign_things\.") as raised:
            CALLS[call](things, FORMS[form](x))
        assert "ampi.rules.define" in str(raised.value)
        for constant in (x0, ampi.value(x), np.array(x0)):
            found = CALLS[call](things, FORMS[form](constant))
            assert type(found) is not float or found == expected or form == "element"  # NumPy's numbers are no arrays
        with ampi.passive():
            CALLS[call](things, FORMS[form](x))
    CALLS[call](things, FORMS[form](x))


def test_what_was_bound_before_and_forward_mode(things):
    bound, method = things.fast, things.Thing().by_object
    for f in (bound, method, things.by_keywords):
        with pytest.raises(ampi.ActivityError, match="foreign_things"):
            ampi.jvp(f, (numpy.ones(3),), (numpy.ones(3),))


def test_a_result_that_is_none_stays_none(things):
    with ampi.Tape():
        assert things.nothing(np.ones(3)) is None
        plain = numpy.zeros(3)
        assert plain.put([0], np.ones(1)) is None


def test_what_is_needed_is_saved_before_compiled_code_may_write(kern):
    def program(x):
        w = np.arange(1.0, 4.0)
        y = x * w
        kern.scale(w)
        return np.sum(y) + np.sum(x * w)

    assert numpy.allclose(ampi.grad(program)(numpy.ones(3)), 3.0 * numpy.arange(1.0, 4.0))


@pytest.mark.parametrize("name", ["square", "scale"])
@pytest.mark.parametrize("form", ["array", "view", "strided", "0-d", "element"])
def test_functions_of_f2py_are_refused_by_name(kern, name, form):
    def program(x):
        getattr(kern, name)(FORMS[form](x))
        return np.sum(x)

    with pytest.raises(ampi.ActivityError, match=rf"foreign_kern\.{name} is compiled code"):
        ampi.grad(program)(numpy.arange(1.0, 5.0))


def test_a_rule_for_a_function_of_f2py(kern):
    square = kern.square
    ampi.rules.define(kern.square, adjoint={"x": lambda g, x: 2.0 * x * g})
    x = numpy.arange(1.0, 5.0)
    for f in (square, kern.square):
        assert numpy.allclose(ampi.grad(lambda x, f=f: np.sum(f(x) ** 2))(x), 4.0 * x**3)
        ampi.testing.dot_test(f, x)


def test_a_program_that_calls_a_function_of_f2py(kern, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import numpy as np\nimport foreign_kern\na = 0.7\nx = a * np.arange(1.0, 5.0)\n"
        "J = float(np.sum(foreign_kern.scale(x) or x)) + a\n"
    )
    with pytest.raises(
        ampi.ActivityError, match=r"program\.py:5: foreign_kern\.scale is compiled code without a deriv"
    ):
        ampi.trace(path, wrt=("a",), of="J")


def test_sets_of_functions_contain_them_afterwards(tmp_path):
    (tmp_path / "things.c").write_text(SOURCE)
    build(tmp_path, "foreign_things", ["things.c"])
    del sys.modules["foreign_things"]
    program = (
        "import numpy, ampi, foreign_things as m\n"
        "kept, table = {m.fast, m.by_object}, {m.fast: 1, m.by_object: 2}\n"
        "with ampi.Tape(): pass\n"
        "assert m.fast in kept and table[m.fast] == 1 and table[m.by_object] == 2 and len(kept) == len(table) == 2\n"
    )
    env = {name: value for name, value in os.environ.items() if "PMI" not in name}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.path.dirname(os.path.dirname(ampi.__file__))])
    subprocess.run([sys.executable, "-c", program], env=env, check=True)


def test_a_package_that_is_declared_transparent(things):
    ampi.rules.transparent("foreign_things")
    try:
        with ampi.Tape() as tape:
            assert things.fast(tape.watch(numpy.ones(3))) == 3.0
    finally:
        KNOWN.remove("foreign_things")


@pytest.mark.parametrize("kind", ["attribute", "class", "name"])
def test_objects_of_modules_are_not_asked_for_attributes_that_they_compute(kind, monkeypatch):
    """Some packages hold objects that start a device, or import something, when one asks them for anything."""

    def fails(self, *name):
        raise RuntimeError("computed")

    names = {"attribute": {"__getattr__": fails}, "class": {"__class__": property(fails)}}
    members = names.get(kind, {"__name__": property(fails)})
    module = type(sys)("things_that_compute")
    module.thing = type("Thing", (), {**members, "__module__": "things_that_compute"})()
    monkeypatch.setitem(sys.modules, "things_that_compute", module)
    assert ampi.grad(lambda x: np.sum(x * x))(numpy.ones(2)).tolist() == [2.0, 2.0]
