"""Where the tests find the program and the models."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def ebb():
    """The program under test; TEST_EBB names another build of it."""
    path = Path(os.environ.get("TEST_EBB", ROOT / "build" / "ebb"))
    assert path.is_file(), f"{path} is not built: run make"
    return path


def model_path(name):
    """The file of a model of deploy/models.tsv; a skip where it cannot be
    had."""
    run = subprocess.run(
        [sys.executable, ROOT / "deploy" / "fetch_model.py", name],
        capture_output=True, text=True)
    if run.returncode != 0:
        pytest.skip(f"model {name} is not there: {run.stderr.strip()}")
    return Path(run.stdout.strip())


@pytest.fixture(scope="session")
def small_model():
    return model_path("smollm2-135m")


@pytest.fixture(scope="session")
def second_model():
    return model_path("qwen2.5-coder-0.5b")
