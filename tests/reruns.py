"""Which tests a run with --reruns tries once more: those of time only. A promise holds, or its test is wrong."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("reruns", None):
        for item in items:
            if item.get_closest_marker("of_time") is None:
                item.add_marker(pytest.mark.flaky(reruns=0))
