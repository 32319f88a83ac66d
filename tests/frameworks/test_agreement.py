"""The four vocabularies offer the same names with the same parameters. Read from their sources: nothing is imported."""

import ast
from functools import cache
from pathlib import Path

import windtunnel
from windtunnel.vocabulary import Vocabulary

PACKAGE = Path(windtunnel.__file__).parent
WORDS = """
cpu gpu num_gpus try_gpu try_all_gpus require_gpus visible_devices device_of to copy from_dlpack policy synchronize
timer memory info
"""
NAMES = WORDS.split()
FRAMEWORKS = ("torch", "jax", "tensorflow", "mxnet")


@cache
def functions(module):
    """The parameters, with defaults, of each function of a module, and of what it takes from windtunnel.vocabulary."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    found = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            (names,) = node.targets
            for name, value in zip(names.elts, node.value.elts, strict=True):
                if ast.unparse(value) == f"_devices.{name.id}":
                    found[name.id] = methods_of_devices()[name.id]
    return found


@cache
def methods_of_devices():
    tree = ast.parse((PACKAGE / "vocabulary.py").read_text(encoding="utf-8"))
    (devices,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Devices")
    found = {node.name: node.args for node in devices.body if isinstance(node, ast.FunctionDef)}
    for arguments in found.values():
        arguments.args = arguments.args[1:]  # without self
    return found


def parameters(arguments):
    """Parameter names and defaults as text."""
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    defaults = [ast.unparse(default) for default in arguments.defaults]
    return list(zip(names, [None] * (len(names) - len(defaults)) + defaults, strict=True))


def exported(module):
    """The names in a module's `__all__`."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_every_vocabulary_exports_the_names():
    exports = {framework: exported(framework) for framework in FRAMEWORKS}
    assert not [(framework, name) for framework in FRAMEWORKS for name in NAMES if name not in exports[framework]]


def effective(framework, name):
    """The parameters of a name; those of windtunnel.vocabulary where the module takes it from there."""
    own = functions(framework)
    return parameters(own[name] if name in own else functions("vocabulary")[name])


def test_the_parameters_are_those_of_torch():
    pairs = [(framework, name) for framework in FRAMEWORKS[1:] for name in NAMES]
    assert not [pair for pair in pairs if effective(*pair) != effective("torch", pair[1])]


def test_the_protocol_names_what_all_have():
    described = {name for name in vars(Vocabulary) if not name.startswith("_")}
    assert described <= set(NAMES)
