"""Fixtures of the end-to-end tests: the real program on the real model."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tiny_model  # noqa: E402
from ebb_server import Server  # noqa: E402


@pytest.fixture(scope="session")
def shared(ebb, small_model):
    """One server for all tests that need no flags and leave it as it was."""
    server = Server(ebb, small_model)
    yield server
    server.close()


@pytest.fixture
def server(shared):
    yield shared
    assert shared.process.poll() is None, shared.log()[-3000:]


@pytest.fixture(scope="session")
def tiny(small_model, tmp_path_factory):
    """The file of a quick model; gates for it are beside it."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.write_gates(folder / "gates.safetensors")
    return tiny_model.write(folder / "tiny.gguf", small_model)


@pytest.fixture
def launch(ebb, small_model):
    """launch(*flags) starts a server that ends with the test."""
    started = []

    def launch(*flags):
        started.append(Server(ebb, small_model, *flags))
        return started[-1]

    yield launch
    for server in started:
        server.close()


@pytest.fixture
def serve(ebb, tiny):
    """serve(tokens, *flags): a server with gates, whose KV memory holds so
    many."""
    started = []
    gates = tiny.with_name("gates.safetensors")

    def serve(tokens, *flags):
        started.append(Server(ebb, tiny, "--gates", gates, "--kv-memory",
                              str(tokens * tiny_model.TOKEN_BYTES), *flags))
        return started[-1]

    yield serve
    for server in started:
        server.close()
