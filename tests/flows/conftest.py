"""One Prefect server for all the tests of flows that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def prefect() -> Iterator[None]:
    """A real server of Prefect's, which takes some twenty seconds to start."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield
