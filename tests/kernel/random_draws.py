"""Random kernels that draw random numbers: in conditions, loops, calls, lists and arrays, among other statements."""

from random_flow import Flow
from random_language import Language

NUMBERS = (
    "np.random.random()",
    "np.random.standard_normal()",
    "np.random.normal({x}, 0.5)",
    "np.random.normal(0.1, {x})",
    "np.random.uniform({x}, {y})",
    "np.random.exponential(abs({x}) + 0.1)",
    "np.random.lognormal(0.1 * {x}, 0.3)",
    "np.random.laplace({x}, 0.5)",
    "np.random.logistic(0.2, {x})",
    "np.random.gamma(1.5, abs({x}) + 0.2)",
    "np.random.triangular(-1.0, 0.1, 1.0 + abs({x}))",
    "np.random.weibull(1.0 + abs({x}))",
    "np.random.rayleigh(abs({x}) + 0.1)",
    "{x} * np.random.randint(1, 4)",
    "{x} * np.random.poisson(1.5)",
    "{x} * np.random.binomial(3, 0.4)",
    "np.random.choice({a})",
    "{a}[np.random.randint(5)]",
    "noisy({x} * 1.0)",
    "(np.random.random() if {x} > 0.2 else {y})",
)
ARRAYS = (
    "np.random.normal({x}, 0.4, 5)",
    "np.random.rand(5) * {a}",
    "np.random.randn(2, 5)[1] + {a}",
    "np.random.uniform(0.0, {x}, (5, 2))[:, 1]",
    "np.random.permutation({a})",
    "{a}[np.random.permutation(5)]",
    "np.random.choice({a}, 5)",
    "np.random.choice({a}, 5, False) * {x}",
    "np.array([np.random.random() * x for x in {a}])",
    "np.random.exponential(0.5, 5) * {a}",
    "np.where(np.random.random(5) < 0.5, {a}, {x})",
)


class Draws:
    """Draws of random numbers, for both kinds of kernels below."""

    def atom(self):
        if self.random.random() < 0.2:
            return self.draw(super().atom(), super().atom())
        return super().atom()

    def draw(self, x, y):
        array = self.random.choice(self.arrays)
        number = self.random.choice(NUMBERS).format(x=x, y=y, a=array)
        return f"math.tanh({number})"

    def condition(self):
        kind = self.random.random()
        if kind < 0.15:
            return "np.random.random() < 0.5"
        if kind < 0.3:
            word = self.random.choice(["or np.random.random() <", "and np.random.random() >"])
            return f"({super().condition()} {word} math.exp(-abs({super().atom()})))"  # a bound may stand before it
        return super().condition()

    def statement(self):
        if self.random.random() > 0.25:
            return super().statement()
        self.budget -= 1
        forms = [self.drawn_number, self.drawn_number, self.drawn_array, self.drawn_while, self.shuffled]
        self.random.choice(forms)()

    def drawn_number(self):
        self.line(f"{self.random.choice(self.scalars)} = {self.draw(super().atom(), super().atom())}")

    def drawn_array(self):
        name, array = self.fresh("w"), self.random.choice(self.arrays)
        self.line(f"{name} = {self.random.choice(ARRAYS).format(x=super().atom(), a=array)}")
        self.line(f"{self.random.choice(self.scalars)} = np.tanh(np.sum({name} * {array}))")

    def drawn_while(self):
        scalar = self.random.choice(self.scalars)
        self.line("while np.random.random() < 0.6:")
        self.line(f"    {scalar} = 0.5 * {scalar} * {self.draw(super().atom(), super().atom())} + 0.1")

    def shuffled(self):
        name = self.fresh("w")
        self.line(f"{name} = {self.random.choice(self.arrays)} * {super().atom()}")
        self.line(f"np.random.shuffle({name})")
        self.line(f"{self.random.choice(self.scalars)} = np.tanh({name}[0] - {name}[3])")


class FlowThatDraws(Draws, Flow):
    pass


class LanguageThatDraws(Draws, Language):
    pass
