"""One thread, no network, and the same random examples in every run."""

from __future__ import annotations

import os
import signal
import sys

# Before anything imports torch or transformers: both read these once.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import pytest

# A shell that starts the tests in the background ignores interrupts, and every process started here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
