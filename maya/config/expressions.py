"""Constraints of sweeps: comparisons and arithmetic over the keys of a job, nothing else of Python."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from maya.errors import ConfigError

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Value of an expression such as ``framework.tp * framework.pp <= world_size``.

    Raises: ConfigError for anything but literals, the given names and their attributes, arithmetic,
    comparisons, ``and``, ``or`` and ``not``.
    """
    try:
        return _value(ast.parse(expression, mode="eval").body, names)
    except (SyntaxError, TypeError, ZeroDivisionError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"constraint {expression!r} cannot be evaluated: {error}. It may use {', '.join(names)} "
            "with their keys, numbers, texts, arithmetic, comparisons, and, or, not."
        ) from None


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.Attribute(value=owner, attr=key) if not key.startswith("_"):
            return getattr(_value(owner, names), key)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_value(item, names) for item in items]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BoolOp(op=op, values=values):
            return (all if isinstance(op, ast.And) else any)(bool(_value(value, names)) for value in values)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            values = [_value(left, names), *(_value(comparator, names) for comparator in comparators)]
            return all(_BINARY[type(op)](a, b) for op, a, b in zip(ops, values[:-1], values[1:], strict=True))
        case _:
            raise TypeError(f"{ast.unparse(node)!r} is not allowed")
