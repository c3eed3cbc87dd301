"""Web splitting: give the independent uses of a variable separate names, before types are inferred.

A *web* is a maximal set of connected assignments and uses of one variable: an assignment is connected with every use
that it may reach.  If ``t`` is used for one thing in a first loop and for another in a second, it has two webs, which
get two names.  So a variable can change its type midway, as in Numba, and analyses see fewer overwritten values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from ampi.kernel.frontend.language.desugar import bound_names
from ampi.kernel.ir.names import Names

Environment = dict[str, frozenset[int]]
StaticTest = Callable[[ast.expr, Callable[[str], bool]], "bool | None"]


@dataclass
class Webs:
    """The webs of one function after renaming.

    ``definitions`` counts the assignments of each new name (a parameter counts as one); ``parameters`` has the new
    names of parameters; ``loop_variables`` are names assigned by a single ``for`` statement and used only inside it;
    ``maybe_undefined`` are uses that no assignment reaches; ``falls_through`` tells whether the end of the body can be
    reached.
    """

    definitions: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    loop_variables: set[str] = field(default_factory=set)
    maybe_undefined: list[ast.Name] = field(default_factory=list)
    falls_through: bool = False


def split_webs(definition: ast.FunctionDef, static_test: StaticTest, is_prange: Callable[[ast.expr], bool]) -> Webs:
    """Rename the variables in ``definition`` (in place) so that each web has a separate name.

    ``static_test(test, is_parameter)`` is the outcome of a condition if it is known at compile time; the branch that is
    not taken is removed.  ``is_prange`` tells whether a loop over an expression is parallel.
    """
    return _Flow(definition, static_test, is_prange).rename()


@dataclass
class _Loop:
    at_break: list[Environment] = field(default_factory=list)
    at_continue: list[Environment] = field(default_factory=list)


class _Flow:
    """Reaching definitions over structured control flow."""

    def __init__(self, definition: ast.FunctionDef, static_test: StaticTest, is_prange: Callable[[ast.expr], bool]):
        self.definition = definition
        self.static_test = static_test
        self.is_prange = is_prange
        self.locals = bound_names(definition)
        self.sites: list[tuple[str, ast.AST | None]] = []  # a definition: its variable, and the node that is renamed
        self.site_of: dict[int, int] = {}
        self.parent: list[int] = []
        self.uses: dict[int, tuple[ast.Name, int]] = {}
        self.unreached: dict[int, ast.Name] = {}
        self.loops: list[_Loop] = []
        self.parallel = 0
        self.for_loops: dict[int, ast.For] = {}
        environment: Environment = {}
        arguments = definition.args
        several = [arguments.vararg] if arguments.vararg else []
        for argument in [*arguments.posonlyargs, *arguments.args, *several, *arguments.kwonlyargs]:
            environment[argument.arg] = frozenset({self.define(argument.arg, argument)})
        self.falls_through = self.block(definition.body, environment) is not None

    # -- union-find over definitions

    def define(self, name: str, node: ast.AST) -> int:
        if id(node) not in self.site_of:
            self.site_of[id(node)] = len(self.sites)
            self.sites.append((name, node))
            self.parent.append(len(self.parent))
        return self.site_of[id(node)]

    def root(self, site: int) -> int:
        while self.parent[site] != site:
            site = self.parent[site]
        return site

    def join(self, sites: frozenset[int]) -> int:
        first, *rest = sorted(self.root(s) for s in sites)
        for other in rest:
            self.parent[other] = first
        return first

    # -- data flow

    def block(self, body: list[ast.stmt], env: Environment | None) -> Environment | None:
        for number, statement in enumerate(body):
            if env is None:
                del body[number:]  # unreachable
                break
            env = self.statement(statement, env)
        return env

    def statement(self, node: ast.stmt, env: Environment) -> Environment | None:
        match node:
            case ast.For():
                return self.for_loop(node, env)
            case ast.While():
                return self.loop(node, env, node.test, None, node.body)
            case ast.If():
                return self.branch(node, env)
            case ast.Break():
                if self.loops:
                    self.loops[-1].at_break.append(env)
                return None
            case ast.Continue():
                if self.loops:
                    self.loops[-1].at_continue.append(env)
                return None
            case ast.Return() | ast.Raise():
                self.read(node, env)
                return None
        return self.written(node, self.read(node, env))

    def read(self, node: ast.AST, env: Environment) -> Environment:
        """Record the definitions that reach an expression or simple statement; return those after it."""
        if not any(isinstance(n, ast.NamedExpr) for n in ast.walk(node)):
            for name in ast.walk(node):
                if isinstance(name, ast.Name):
                    self.use(name, env)
            return env
        match node:
            case ast.NamedExpr():
                target = node.target.id
                return self.read(node.value, env) | {target: frozenset({self.define(target, node.target)})}
            case ast.BoolOp():
                env = self.read(node.values[0], env)
                for operand in node.values[1:]:
                    env = _merge(env, self.read(operand, env)) or env
                return env
            case ast.IfExp():
                env = self.read(node.test, env)
                return _merge(self.read(node.body, env), self.read(node.orelse, env)) or env
            case ast.Assign():
                parts = [node.value, *node.targets]
            case _:
                parts = list(ast.iter_child_nodes(node))
        for part in parts:
            env = self.read(part, env)
        return env

    def use(self, name: ast.Name, env: Environment) -> None:
        if not isinstance(name.ctx, ast.Load) or name.id not in self.locals:
            return
        reaching = env.get(name.id)
        if reaching:
            self.uses[id(name)] = (name, self.join(reaching))
            self.unreached.pop(id(name), None)
        elif id(name) not in self.uses:
            self.unreached[id(name)] = name

    def written(self, node: ast.AST, env: Environment) -> Environment:
        inner = {id(n.target) for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        stores = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        stores = [n for n in stores if id(n) not in inner]
        defined = {n.id: frozenset({self.define(n.id, n)}) for n in stores}
        if self.parallel and isinstance(node, ast.Assign):
            # s += x; s += y in a parallel loop reduces into one variable, so the two updates are one web.
            updated = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)} & set(defined)
            for name in updated:
                if env.get(name):
                    self.join(env[name] | defined[name])
        return {**env, **defined}

    def branch(self, node: ast.If, env: Environment) -> Environment | None:
        def is_parameter(name: str) -> bool:
            if self.loops and any(known == name and not isinstance(n, ast.arg) for known, n in self.sites):
                return False
            sites = env.get(name, frozenset())
            return bool(sites) and all(isinstance(self.sites[s][1], ast.arg) for s in sites)

        known = self.static_test(node.test, is_parameter)
        if known is not None:
            taken = node.body if known else node.orelse
            node.test, node.body, node.orelse = (
                ast.copy_location(ast.Constant(True), node.test),
                taken or [ast.copy_location(ast.Pass(), node)],
                [],
            )
            return self.block(node.body, env)
        env = self.read(node.test, env)
        return _merge(self.block(node.body, env), self.block(node.orelse, env))

    def for_loop(self, node: ast.For, env: Environment) -> Environment | None:
        env = self.read(node.iter, env)
        parallel = self.is_prange(node.iter)
        self.parallel += parallel
        after = self.loop(node, env, None, node.target, node.body)
        self.parallel -= parallel
        return after

    def loop(
        self,
        node: ast.For | ast.While,
        env: Environment,
        test: ast.expr | None,
        target: ast.expr | None,
        body: list[ast.stmt],
    ) -> Environment | None:
        head = env
        while True:
            self.loops.append(_Loop())
            tested = head if test is None else self.read(test, head)
            inside = tested if target is None else self.written(target, tested)
            end = self.block(body, inside)
            loop = self.loops.pop()
            back = _merge(end, *loop.at_continue)
            new_head = _merge(head, back)
            if new_head == head:
                break
            head = new_head
        endless = isinstance(test, ast.Constant) and test.value is True
        done = None if endless else self.block(node.orelse, tested)
        return _merge(done, *loop.at_break)

    # -- renaming

    def rename(self) -> Webs:
        webs = Webs(falls_through=self.falls_through)
        fresh = Names(self.locals).fresh
        names: dict[int, str] = {}
        seen: set[str] = set()
        order = sorted(range(len(self.sites)), key=lambda s: (not isinstance(self.sites[s][1], ast.arg), s))
        for site in order:
            root = self.root(site)
            if root not in names:
                name = self.sites[site][0]
                names[root] = fresh(name) if name in seen else name
                seen.add(name)
            name = names[root]
            webs.definitions[name] = webs.definitions.get(name, 0) + 1
            node = self.sites[site][1]
            if isinstance(node, ast.arg):
                webs.parameters[node.arg] = name
                node.arg = name
            else:
                node.id = name
        for use, site in self.uses.values():
            use.id = names[self.root(site)]
        webs.maybe_undefined = list(self.unreached.values())
        webs.loop_variables = _pure_loop_variables(self.definition, webs)
        return webs


def _merge(*environments: Environment | None) -> Environment | None:
    reached = [e for e in environments if e is not None]
    if not reached:
        return None
    merged: dict[str, frozenset[int]] = {}
    for environment in reached:
        for name, sites in environment.items():
            merged[name] = merged.get(name, frozenset()) | sites
    return merged


def _pure_loop_variables(definition: ast.FunctionDef, webs: Webs) -> set[str]:
    inside: dict[str, int] = {}
    for loop in ast.walk(definition):
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and webs.definitions[loop.target.id] == 1:
            name = loop.target.id
            inside[name] = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(loop))
    everywhere: dict[str, int] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and node.id in inside:
            everywhere[node.id] = everywhere.get(node.id, 0) + 1
    return {name for name in inside if inside[name] == everywhere[name]}
