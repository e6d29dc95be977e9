"""Search agents that get better by retrying: train and evaluate them (MR-Search, arXiv 2603.11327).

The public names are listed in `__all__` and described in docs/reference.md.
Each is imported when it is first used, so that `import mrsearch` is quick and
loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mrsearch.config import Config, load_config
    from mrsearch.core.credit import mr_search
    from mrsearch.core.meta_episode import MetaEpisode
    from mrsearch.core.plan import Plan
    from mrsearch.core.ports import Sampling
    from mrsearch.core.protocol import Prompts, parse_action
    from mrsearch.core.rewards import exact_match, sub_exact_match, token_f1
    from mrsearch.core.types import Passage, Question, Trajectory

__version__ = "0.1.0"

__all__ = [
    "Config",
    "MetaEpisode",
    "Passage",
    "Plan",
    "Prompts",
    "Question",
    "Sampling",
    "Trajectory",
    "exact_match",
    "load_config",
    "mr_search",
    "parse_action",
    "sub_exact_match",
    "token_f1",
]

_HOME = {
    "Config": "mrsearch.config",
    "MetaEpisode": "mrsearch.core.meta_episode",
    "Passage": "mrsearch.core.types",
    "Plan": "mrsearch.core.plan",
    "Prompts": "mrsearch.core.protocol",
    "Question": "mrsearch.core.types",
    "Sampling": "mrsearch.core.ports",
    "Trajectory": "mrsearch.core.types",
    "exact_match": "mrsearch.core.rewards",
    "load_config": "mrsearch.config",
    "mr_search": "mrsearch.core.credit",
    "parse_action": "mrsearch.core.protocol",
    "sub_exact_match": "mrsearch.core.rewards",
    "token_f1": "mrsearch.core.rewards",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mrsearch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
