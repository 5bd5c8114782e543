"""Attributes of actors have slots: one without costs memory and time for each connection.

pykka's ``Actor`` has no ``__slots__``, so that such an attribute raises no error.
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap

import pytest

from actors.kernel.actor import LoopActor

pytestmark = pytest.mark.plain

PACKAGES = ("actors.broker", "actors.connection", "actors.session", "actors.sharing")


def classes() -> list[type]:
    """Return the classes of actors with slots: those of which a broker has many."""
    for package in PACKAGES:
        for module in pkgutil.iter_modules(
            importlib.import_module(package).__path__, f"{package}."
        ):
            importlib.import_module(module.name)
    todo: list[type] = [LoopActor]
    for found in todo:
        todo += found.__subclasses__()
    return [
        one for one in todo if one.__module__.startswith("actors.") and "__slots__" in vars(one)
    ]


def attributes(source: str) -> set[str]:
    """Return the attributes that the methods of a class set on ``self``."""
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(source)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@pytest.mark.parametrize("actor", classes(), ids=lambda actor: actor.__name__)
def test_each_attribute_of_an_actor_has_a_slot(actor: type) -> None:
    descriptors = {name for base in actor.__mro__ for name in vars(base)}
    assert attributes(inspect.getsource(actor)) <= descriptors


def test_connections_and_sessions_are_among_them() -> None:
    names = {actor.__name__ for actor in classes()}
    assert {"LoopActor", "Connection", "Session", "Subscription"} <= names


def test_an_attribute_without_a_slot_is_found() -> None:
    assert attributes("class A:\n def f(self):\n  self.one, self.two = 1, 2") == {"one", "two"}
