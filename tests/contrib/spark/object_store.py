"""An object store on this machine: moto's server, which speaks S3 and so knows no rename, no append and no folders."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSystem

from sqlqueue.contrib.spark.store import Store
from tests.processes import wait_until
from tests.servers.private import free_port

BUCKET = "lake"
# The keys that executors find in their environment; the server takes any.
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


def server() -> str:
    """Return the program; skip the test where requirements/spark-test.txt is not installed."""
    found = shutil.which("moto_server", path=str(Path(sys.executable).parent)) or shutil.which("moto_server")
    if found is None:
        pytest.skip("there is no moto_server: pip install -r requirements/spark-test.txt")
    return found


@contextmanager
def running(output: Path) -> Iterator[str]:
    """Start a server with an empty bucket; yield the URI of a place in it."""
    port = free_port()
    with output.open("wb") as file:
        command = [server(), "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    query = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    try:
        wait_until(lambda: b"Running on" in output.read_bytes() or process.poll() is not None, 60)
        assert process.poll() is None, output.read_text()
        files, _ = FileSystem.from_uri(f"s3://{BUCKET}?{query}&allow_bucket_creation=true")
        files.create_dir(BUCKET)
        yield f"s3://{BUCKET}/archive?{query}"
    finally:
        process.terminate()
        process.wait(30)


class LocalObjects(Store):
    """A folder that is used as an object store is: files are written in their place, and nothing is renamed."""

    def created(self, path: str) -> Any:
        """Return a new file to write."""
        Path(self.root, path).parent.mkdir(parents=True, exist_ok=True)
        return super().created(path)
