"""Authorization: which topics a client may publish and subscribe to."""

from actors.authz.filter_index import FilterError, parse_filter
from actors.authz.rule_sets import Action
from actors.authz.rules import BRIDGE, Explanation, Permissions, Rule, TopicAcl

__all__ = [
    "BRIDGE",
    "Action",
    "Explanation",
    "FilterError",
    "Permissions",
    "Rule",
    "TopicAcl",
    "parse_filter",
]
