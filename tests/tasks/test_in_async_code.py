"""Tasks in async code: the interface's async calls work, and the sync ones name them."""

from functools import partial

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from sqlqueue.models import Result
from tests.asynchronous.loops import in_loop
from tests.tasks.declared import samples
from tests.tasks.stored import state_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_on_an_event_loop_the_sync_calls_name_the_async_ones() -> None:
    result = samples.note.enqueue("a")

    async def main() -> None:
        with pytest.raises(SynchronousOnlyOperation, match=r"enqueue\(\) would block .* `await task\.aenqueue\(…\)`"):
            samples.note.enqueue("b")
        for look in (result.refresh, partial(samples.note.get_result, result.id)):
            with pytest.raises(SynchronousOnlyOperation, match=r"`await task\.aget_result\(…\)` or `await result\."):
                look()

    in_loop(main())
    assert Result.objects.count() == 1


def test_the_async_calls_work() -> None:
    async def main() -> str:
        result = await samples.note.aenqueue("a")
        await result.arefresh()
        return (await samples.note.aget_result(result.id)).id

    assert state_of(in_loop(main())).status == "READY"
