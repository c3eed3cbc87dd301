"""PyTorch modules in programs: values and derivatives beside PyTorch's own and beside finite differences."""

import sys

import numpy
import pytest

import ampi
import ampi.numpy as np

torch = pytest.importorskip("torch")
nn = torch.nn

LAYERS = {
    "linear": lambda n: nn.Linear(n, n),
    "no bias": lambda n: nn.Linear(n, n, bias=False),
    "tanh": lambda n: nn.Tanh(),
    "gelu": lambda n: nn.GELU(),
    "softplus": lambda n: nn.Softplus(beta=2.0),
    "softmax": lambda n: nn.Softmax(dim=-1),
    "layer norm": lambda n: nn.LayerNorm(n),
    "batch norm": lambda n: nn.BatchNorm1d(n),
    "dropout": lambda n: nn.Dropout(0.4),
    "convolution": lambda n: nn.Sequential(
        nn.Unflatten(1, (1, n)), nn.Conv1d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * n, n)
    ),
    "bilinear": lambda n: Twice(nn.Bilinear(n, n, n)),
    "attention": lambda n: Attention(n),
    "tied": lambda n: Tied(n),
    "no tangent": lambda n: Cubed(),
}


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x * x)


class Attention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.inner = nn.MultiheadAttention(n, 1, batch_first=True)

    def forward(self, x):
        return self.inner(x[None], x[None], x[None], need_weights=True)[0][0]


class Tied(nn.Module):
    """Two layers with one weight, a buffer, and a frozen parameter."""

    def __init__(self, n):
        super().__init__()
        self.first, self.second = nn.Linear(n, n), nn.Linear(n, n)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.rand(n))
        self.frozen = nn.Parameter(torch.rand(n), requires_grad=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)) * self.scale) + self.frozen


class _Cube(torch.autograd.Function):
    """A function with an adjoint only: its tangent is found by two reverse sweeps."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context, bar):
        (x,) = context.saved_tensors
        return 3 * x * x * bar


class Cubed(nn.Module):
    def forward(self, x):
        return _Cube.apply(x)


class Whole(nn.Module):
    """Returns a structure: results of floats and of integers."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x, gain=1.0, *, flags=()):
        y = self.layers(x) * gain
        return {"y": y, "rest": [y.argmax(), (y.sum(0), x * y)], "flags": flags}


def drawn(seed):
    """A random module, an input, and a description."""
    rng = numpy.random.default_rng(seed)
    torch.manual_seed(seed)
    n = int(rng.integers(2, 5))
    names = [str(name) for name in rng.choice(list(LAYERS), rng.integers(1, 5))]
    kind = torch.float32 if seed % 4 == 3 else torch.float64
    module = Whole([LAYERS[name](n) for name in names]).to(kind)
    if rng.random() < 0.5:
        module.eval()
    return module, rng.normal(size=(3, n)).astype("f4" if kind is torch.float32 else "f8"), names


def reference(module, parameters, x, gain):
    """The objective of `objective` in PyTorch alone."""
    found = torch.func.functional_call(module, parameters, (x, gain))
    return torch.sum(found["y"] ** 2) + torch.sum(found["rest"][1][0] * found["rest"][1][1])


def in_torch(module, w, x):
    """Value, gradients and the product of the Hessian with w and x themselves, by PyTorch's double backward."""
    kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
    w = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in w.items()}
    x = torch.from_numpy(x.copy()).requires_grad_()
    torch.manual_seed(77)
    value = reference(module, {**w, **kept}, x, 1.5)
    variables = [*w.values(), x]
    gradients = torch.autograd.grad(value, variables, create_graph=True)
    product = sum((gradient * variable.detach()).sum() for gradient, variable in zip(gradients, variables))
    second = torch.autograd.grad(product, variables, allow_unused=True, materialize_grads=True)
    return value.item(), [g.detach().numpy() for g in gradients], [g.detach().numpy() for g in second]


def check_seed(seed):
    module, x, names = drawn(seed)
    used = ampi.from_torch(module)
    w = used.parameters()
    expected, gradients, second = in_torch(module, w, x)
    single = x.dtype == numpy.float32
    close = lambda found, expected: numpy.testing.assert_allclose(
        found, expected, **(dict(rtol=3e-4, atol=3e-4) if single else dict(rtol=1e-8, atol=1e-9)), err_msg=str(names)
    )

    def program(w, x):
        torch.manual_seed(77)
        u = x * 1.0
        found = used(u, 1.5, parameters=w, flags=("a", None))
        u[...] = 0.25  # what the adjoint needs comes back
        assert found["flags"] == ("a", None) and numpy.asarray(found["rest"][0]).dtype.kind == "i"
        return np.sum(found["y"] ** 2) + np.sum(found["rest"][1][0] * found["rest"][1][1])

    close(program(w, np.array(x)), expected)
    w_bar, x_bar = ampi.grad(program, argnums=(0, 1))(w, x)
    for found, known in zip([*w_bar.values(), x_bar], gradients):
        assert found.dtype == x.dtype
        close(found, known)
    slope = sum(float(numpy.sum(g * v)) for g, v in zip(gradients, [*w.values(), x]))
    close(ampi.jvp(program, (w, x), (w, x))[1], slope)
    if "no tangent" not in names:
        w_second, x_second = ampi.hvp(program, (w, x), (w, x))
        for found, known in zip([*w_second.values(), x_second], second):
            close(found, known)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_modules(seed):
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 200))
def test_many_drawn_modules(seed):
    check_seed(seed)


def test_parameters_are_independents_or_constants():
    torch.manual_seed(1)
    module = Tied(3).double()
    used = ampi.from_torch(module)
    w = used.parameters()
    assert sorted(w) == [
        "first.bias",
        "first.weight",
        "second.bias",
    ]  # not the frozen one; one name for the tied weight
    w["first.weight"][:] = 7.0
    assert not (module.first.weight == 7.0).any()
    x = numpy.linspace(-1.0, 1.0, 3)
    some = {"first.bias": w["first.bias"], "frozen": numpy.ones(3)}
    gradient = ampi.grad(lambda some: np.sum(used(x, parameters=some)))(some)
    assert gradient["frozen"].tolist() == [1.0, 1.0, 1.0] and gradient["first.bias"].any()
    with pytest.raises(ampi.ActivityError, match=r"got 'bias' among its parameters, which are: frozen, first.weight, "):
        used(x, parameters={"bias": numpy.ones(3)})


def test_the_adjoint_uses_the_state_of_the_call():
    """Parameters, buffers and modes may change before the sweep; the module's own go on as without a tape."""
    torch.manual_seed(3)
    make = lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Tanh()).double()
    module = make()
    x = numpy.random.default_rng(0).normal(size=(4, 3))
    twin = make()
    twin.load_state_dict(module.state_dict())
    torch.manual_seed(9)
    known = torch.from_numpy(x.copy()).requires_grad_()
    expected = twin(known) + 0.0 * twin(known)
    (gradient,) = torch.autograd.grad((expected**2).sum(), known)
    after = torch.get_rng_state()

    used = ampi.from_torch(module)
    torch.manual_seed(9)
    with ampi.Tape() as tape:
        u = tape.watch(x)
        y = used(u) + 0.0 * used(u)
        loss = np.sum(y**2)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), twin.state_dict().values()))
    module.eval()
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data.fill_(2)
    numpy.testing.assert_allclose(tape.gradient(loss, u), gradient, rtol=1e-10, atol=1e-12)
    assert not module.training and not module[2].training
    assert all((tensor == 2).all() for tensor in [*module.parameters(), *module.buffers()])
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("mode", ["jvp", "hvp", "linearize"])
def test_a_module_draws_and_counts_once_per_call(mode):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).double()
    used = ampi.from_torch(module)
    x = numpy.random.default_rng(0).normal(size=(4, 3))
    torch.manual_seed(5)
    nn.functional.dropout(torch.ones(4, 3, dtype=torch.float64))
    after = torch.get_rng_state()
    torch.manual_seed(5)
    program = lambda x: np.sum(used(x) ** 2)
    {"jvp": ampi.jvp, "hvp": ampi.hvp, "linearize": lambda f, x, d: ampi.linearize(f, x)}[mode](program, x, x)
    assert torch.equal(torch.get_rng_state(), after) and int(module[0].num_batches_tracked) == 1


def test_vector_modes():
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    used = ampi.from_torch(module)
    x = numpy.linspace(-1.0, 1.0, 3)
    expected = torch.func.jacrev(module)(torch.from_numpy(x)).numpy(force=True)
    for found in (ampi.jacrev(used, x), ampi.jacfwd(used, x)):
        numpy.testing.assert_allclose(found, expected, rtol=1e-12)
    hessian = torch.func.hessian(lambda x: (module(x) ** 2).sum())(torch.from_numpy(x)).numpy(force=True)
    numpy.testing.assert_allclose(ampi.hessian(lambda x: np.sum(used(x) ** 2), x), hessian, rtol=1e-10, atol=1e-12)
    with ampi.Tape() as tape:
        u = tape.watch(x)
        y = used(u)
    numpy.testing.assert_allclose(tape.tangent(y, u, x), expected @ x, rtol=1e-12)


@pytest.mark.parametrize("kind", ["f4", "f8", "c8", "c16"])
def test_arrays_of_any_layout_and_precision(kind):
    used = ampi.from_torch(lambda x: (x * x.conj()).real.sum())
    x = numpy.arange(24.0).astype(kind).reshape(4, 6) * (1 + 2j if kind[0] == "c" else 1)
    frozen = x.copy()
    frozen.flags.writeable = False
    swapped = x.astype(x.dtype.newbyteorder())
    views = [
        x,
        x.T,
        x[::-1, ::2],
        x[1:3, 1:],
        x[:, :0],
        numpy.asfortranarray(x),
        frozen,
        numpy.broadcast_to(x[0], (3, 6)),
    ]
    for view in views:
        found = ampi.grad(lambda x: used(x))(view)
        assert found.dtype == x.dtype and numpy.array_equal(found, 2 * view)
    assert float(used(swapped)) == float(used(x))
    with ampi.Tape() as tape:
        u = tape.watch(x)
        y = used(u[::-1, 1::2]) + used(u.T[2:])
    expected = numpy.zeros_like(x)
    expected[::-1, 1::2] += 2 * x[::-1, 1::2]
    expected[:, 2:] += 2 * x[:, 2:]
    assert numpy.array_equal(tape.gradient(y, u), expected)


@pytest.mark.parametrize("name", ["square", "conjugate", "absolute", "mixed"])
def test_complex_numbers(name):
    """Against differences of the program, in the real inner product."""
    function = {
        "square": lambda z: z * z * (1 + 2j),
        "conjugate": lambda z: torch.conj(z) * z**2,
        "absolute": lambda z: torch.abs(z) ** 1.5,
        "mixed": lambda z: z.real * 1j + torch.exp(z),
    }[name]
    used = ampi.from_torch(function)
    rng = numpy.random.default_rng(3)
    z, d = rng.normal(size=(2, 4)) + 1j * rng.normal(size=(2, 4))
    program = lambda z: np.sum(np.abs(used(z) - (0.3 + 0.1j)) ** 2)
    h = 1e-6
    expected = (program(np.array(z + h * d)) - program(np.array(z - h * d))) / (2 * h)
    assert numpy.sum(numpy.conj(ampi.grad(program)(z)) * d).real == pytest.approx(float(expected), rel=1e-7)
    assert ampi.jvp(program, z, d)[1] == pytest.approx(float(expected), rel=1e-7)


def test_results_share_no_memory_of_the_module():
    module = Tied(3).double()
    module.forward = lambda x: (x, module.scale, x[:2], x.expand(2, 3))
    kept = module.scale.clone()
    x = numpy.ones(3)
    for y in ampi.from_torch(module)(x):
        y[...] = 5.0
    assert x.tolist() == [1.0, 1.0, 1.0] and torch.equal(module.scale, kept)
    assert ampi.grad(lambda x: np.sum(ampi.from_torch(module)(x)[3]))(x).tolist() == [2.0, 2.0, 2.0]


class Once(torch.autograd.Function):
    """A function whose adjoint cannot be differentiated."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, bar):
        return 2 * context.saved_tensors[0] * bar


class Sparse(nn.Module):
    def forward(self, x):
        return x.to_sparse()


def _in_place(x):
    return nn.functional.relu(x, inplace=True)


REFUSED = {
    "another precision": (
        nn.Linear(2, 2),
        numpy.ones(2),
        r"arrays of float64 and has parameters of float32.*double\(\)",
    ),
    "overwritten": (_in_place, numpy.ones(2), r"_in_place.* overwrites an argument.*inplace=True"),
    "a tensor": (torch.sin, torch.ones(2, requires_grad=True), r"sin\) got a tensor that requires gradients"),
    "no such dtype": (
        torch.abs,
        numpy.ones(2, numpy.longdouble),
        r"abs, of PyTorch, gets an array of dtype longdouble|float128",
    ),
    "no dtype of NumPy": (lambda x: x.bfloat16(), numpy.ones(2), r"returns a tensor of dtype torch.bfloat16"),
    "sparse": (Sparse(), numpy.ones(2), r"Sparse\) returned a tensor with the layout torch.sparse_coo"),
    "another device": (nn.Linear(2, 2, device="meta"), numpy.ones(2), r"weight is on the device meta.*module.cpu\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(name):
    function, x, pattern = REFUSED[name]
    used = ampi.from_torch(function)
    with pytest.raises(ampi.ActivityError, match=pattern):
        used(x)
    if isinstance(x, numpy.ndarray) and x.dtype == numpy.float64:
        with pytest.raises(ampi.ActivityError, match=pattern):
            ampi.grad(lambda x: np.sum(used(x)))(numpy.ones(2))


def test_missing_derivatives_are_errors_or_warnings():
    once = ampi.from_torch(Once.apply)
    x = numpy.ones(2)
    assert ampi.grad(lambda x: np.sum(once(x)))(x).tolist() == [2.0, 2.0]
    for f in (once, ampi.from_torch(lambda x: Once.apply(x) + x), lambda x: once(x) + x):
        for derivative in (ampi.jvp, ampi.hvp):
            with pytest.raises(ampi.ActivityError, match=r"PyTorch has no tangent of.*once_differentiable"):
                derivative(lambda x, f=f: np.sum(f(x)), x, x)
    cut = ampi.from_torch(lambda x: torch.from_numpy(numpy.sin(x.detach().numpy())))
    with pytest.warns(ampi.ActivityWarning, match="returns tensors without derivatives.*numpy"):
        assert not ampi.grad(lambda x: np.sum(cut(x)))(x).any()
    with pytest.warns(ampi.ActivityWarning, match="returns tensors without derivatives.*numpy"):
        assert not ampi.jvp(lambda x: np.sum(cut(x)), x, x)[1].any()


def test_time_loops_rerun_only_what_can_be_rerun():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double()
    used = ampi.from_torch(module)
    step = lambda u: u + 0.1 * used(u)
    x = numpy.linspace(0.0, 1.0, 3)
    gradient = ampi.grad(lambda x: np.sum(ampi.timeloop(step, x, 5, checkpoints=2) ** 2))
    with pytest.raises(ampi.ActivityError, match=r"draws random numbers in a step of ampi.timeloop.*module.eval\(\)"):
        gradient(x)
    module.eval()
    found = gradient(x)
    u = known = torch.from_numpy(x).requires_grad_()
    for _ in range(5):
        u = u + 0.1 * module(u)
    numpy.testing.assert_allclose(found, torch.autograd.grad((u**2).sum(), known)[0].numpy(), rtol=1e-12)


@pytest.mark.mpi(min_size=2)
def test_a_closure_in_a_solver_on_several_ranks():
    """A network computes fluxes between cells that ranks exchange: gradients of all cells, and of its weights."""
    comm = ampi.COMM_WORLD
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    closure = ampi.from_torch(module)

    def energy(x, w):
        u = x * 1.0
        for _ in range(3):
            left = np.zeros(1)
            comm.Sendrecv(u[-1:], (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)
            behind = np.concatenate([left, u[:-1]])
            u = u + 0.1 * closure(np.stack([behind, u], axis=-1), parameters=w)[:, 0] * (u - behind)
        total = np.zeros(1)
        comm.Allreduce(np.sum(u**2), total)
        return total[0]

    x = numpy.linspace(0.0, 1.0, 4) + comm.rank
    x_bar, w_bar = ampi.grad(energy, argnums=(0, 1), objective="replicated")(x, closure.parameters())

    u = whole = torch.from_numpy(numpy.concatenate(comm.allgather(x))).requires_grad_()
    for _ in range(3):
        behind = torch.roll(u, 1)
        u = u + 0.1 * module(torch.stack([behind, u], dim=-1))[:, 0] * (u - behind)
    expected, *weights = torch.autograd.grad((u**2).sum(), [whole, *module.parameters()])
    mine = slice(4 * comm.rank, 4 * comm.rank + 4)
    numpy.testing.assert_allclose(x_bar, expected.numpy()[mine], rtol=1e-10)
    for found, known in zip(w_bar.values(), weights):
        numpy.testing.assert_allclose(comm.allreduce(found), known.numpy(), rtol=1e-9, atol=1e-12)


def test_tensors_of_active_arrays_are_errors_that_name_the_way():
    def program(make):
        return lambda x: np.sum(ampi.numpy.asarray(make(x).numpy()))

    for make in (torch.tensor, torch.from_numpy, torch.as_tensor, torch.asarray, torch.DoubleTensor):
        with pytest.raises(ampi.ActivityError, match="from_torch"):
            ampi.grad(program(make))(numpy.ones(3))


def test_without_pytorch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"ampi\[torch\]"):
        ampi.from_torch(lambda x: x)
