"""A read-only `networkx.MultiDiGraph`: the networkx view of a graph, `Graph.nx`.

The module is separate in order to defer the import of networkx, which takes a third of the start-up time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from llmir.base.values import FrozenDict


class FrozenGraph(nx.MultiDiGraph):  # type: ignore[misc] # networkx has no types
    """A `networkx.MultiDiGraph` that refuses edits of nodes, edges and attributes.

    `copy()` returns an editable graph.
    """

    _sealed = False  # networkx has its own flag, but sets it on views before they are filled

    @classmethod
    def of(cls, name: str, nodes: Mapping[str, Any]) -> FrozenGraph:
        """Build the networkx graph of these nodes."""
        found = cls()
        found.hold(name, nodes)
        return found

    def hold(self, name: str, nodes: Mapping[str, Any]) -> None:
        """Add these nodes and their edges, then make the graph read-only, including edge attributes."""
        used: dict[str, FrozenDict[str, Any]] = {}
        users: dict[str, dict[str, Any]] = {name: {} for name in nodes}
        for node in nodes.values():
            edges: dict[str, dict[int, Any]] = {}
            for slot, value in enumerate(node.operands):
                edges.setdefault(value.node, {})[slot] = FrozenDict(value=value)
            used[node.name] = FrozenDict((source, FrozenDict(keys)) for source, keys in edges.items())
            for source, keys in used[node.name].items():
                users[source][node.name] = keys
        self._node = FrozenDict((name, FrozenDict(node=node)) for name, node in nodes.items())
        self._adj = FrozenDict((name, FrozenDict(after)) for name, after in users.items())
        self._pred = FrozenDict(used)
        self.graph = FrozenDict(name=name)
        nx.freeze(self)
        self._sealed = True

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed:
            raise nx.NetworkXError(f"cannot set {name!r}: the graph is frozen; copy() can be edited")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._sealed:
            raise nx.NetworkXError(f"cannot delete {name!r}: the graph is frozen; copy() can be edited")
        super().__delattr__(name)

    def copy(self, as_view: bool = False) -> nx.MultiDiGraph:
        """An editable graph with equal nodes, edges and attributes, or a view."""
        return super().copy(as_view=True) if as_view else nx.MultiDiGraph(self)
