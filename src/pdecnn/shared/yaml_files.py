"""YAML that says what it means: no aliases, no key twice, no tags beyond those of JSON, limits on depth and numbers."""

from typing import Any

import yaml

from pdecnn.shared.reading import MAX_DEPTH, FileError, integer

_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


class _Loader(yaml.SafeLoader):
    """A safe loader for data of bounded depth, in which every value is written where it stands."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            _refuse(event, f"the alias *{event.anchor} is not allowed; write the value out")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _refuse(event, f"it is nested more than {MAX_DEPTH} deep")
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        if node.tag not in _PLAIN:
            _refuse(event, f"a value of the kind {node.tag.rpartition(':')[2]!r} is not allowed; put it into quotes")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(key.value)
                if not isinstance(key, yaml.ScalarNode) or name in seen:
                    _refuse(key, f"the key {name!r:.80} stands there twice, or is not a name")
                seen.add(name)
        return node

    def construct_yaml_int(self, node: Any) -> int:
        integer(str(node.value), f"line {node.start_mark.line + 1}")
        return super().construct_yaml_int(node)  # type: ignore[no-any-return, no-untyped-call]


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)  # type: ignore[no-untyped-call]


class _Dumper(yaml.SafeDumper):
    """Writes every value where it stands, as `_Loader` wants it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def parse_yaml(text: str, where: str) -> Any:
    """Plain lists, dicts, numbers and strings, or a FileError.

    Example:
        >>> parse_yaml("epochs: 2", "recipe.yaml")
        {'epochs': 2}
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise FileError(f"{where} is not valid YAML: {' '.join(str(error).split())}.") from error


def dump_yaml(values: Any) -> str:
    """YAML in the order of the keys that `parse_yaml` reads."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False)
    return text


def _refuse(where: Any, problem: str) -> None:
    raise yaml.constructor.ConstructorError(None, None, problem, where.start_mark)
