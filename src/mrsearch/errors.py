"""One family of errors, each also the standard error that it refines.

    MrsearchError                       what a command prints as one line, exit 1
    ├── ConfigError   (ValueError)      a setting, or two that do not fit together; exit 2
    ├── DataError     (ValueError)      a question, corpus, demonstration or run file
    ├── ModelError    (ValueError)      a model or tokenizer that cannot do what is asked
    ├── RetrieverError (RuntimeError)   no passages to be had: one search, not the run
    │   └── RetrieverDown               nobody answers: waiting may help, another query will not
    ├── Outage        (RuntimeError)    the retriever is gone, and the run is to stop for it
    ├── MissingExtra  (ImportError)     an optional package that is not installed
    └── Interrupted   (RuntimeError)    stopped by the user, with the run saved

`assert` is for what our own code guarantees; these are for what the world gave us.
"""

from __future__ import annotations


class MrsearchError(Exception):
    """Base of all errors that are written for a person."""


class ConfigError(MrsearchError, ValueError):
    """A setting is unknown, out of range, or does not fit another one."""


class DataError(MrsearchError, ValueError):
    """A file of questions, passages, demonstrations or a run cannot be used as it is."""


class ModelError(MrsearchError, ValueError):
    """A model, tokenizer or chat template cannot do what is asked of it."""


class RetrieverError(MrsearchError, RuntimeError):
    """A retriever gave no answer. A driver turns it into `retrieval_failed` for the searches concerned."""


class RetrieverDown(RetrieverError):
    """Nobody answers, or only with errors of their own: every search fails until that changes."""


class Outage(MrsearchError, RuntimeError):
    """The retriever is down and the settings say that the run stops for it, with its work saved."""


class MissingExtra(MrsearchError, ImportError):
    """An optional part is needed that is not installed; the message names the extra."""


class Interrupted(MrsearchError, RuntimeError):
    """The user stopped the run; what was done is saved and the message says how to go on."""
