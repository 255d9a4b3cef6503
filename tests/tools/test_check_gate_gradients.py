"""`make gradients` never passes without having checked something."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_without_pytorch_it_fails_and_says_so(tmp_path):
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tests/tools/check_gate_gradients.py"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stdout == ""
    assert "NOT CHECKED: No module named 'torch'" in done.stderr
    assert "PyTorch" in done.stderr and "Traceback" not in done.stderr


def test_make_knows_it():
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, text=True,
                           capture_output=True, timeout=60, check=True).stdout
    line = next(x for x in shown.splitlines() if "make gradients" in x)
    assert "PyTorch" in line
    done = subprocess.run(["make", "-n", "gradients", "PYTHON=chosen"],
                          cwd=ROOT, text=True, capture_output=True,
                          timeout=60, check=True).stdout
    assert "chosen tests/tools/check_gate_gradients.py" in done
