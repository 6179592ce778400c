"""A standalone Spark cluster on loopback: a master and two workers, each with an executor of one core. They know no
Django project."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.processes import wait_until
from tests.servers.private import free_port

SPARK = Path(pyspark.__file__).parent
TIMEOUT = 180
WORKERS = 2
MEMORY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What a driver on this machine says, beside the master.
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {MEMORY}",
    "spark.executor.extraJavaOptions": f"-Duser.timezone=UTC {MEMORY}",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


class Cluster:
    """The processes. A worker and its executor are one process group, and are killed as one machine is."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        port = self.master.rpartition(":")[2]
        self._master_log = self._start("master", "Master", "--host", "127.0.0.1", "--port", port)
        self._said(self._master_log, "I have been elected leader")
        self.workers: list[subprocess.Popen[bytes]] = []
        self.complete()

    def complete(self) -> None:
        """Start workers until there are two."""
        while len(self.workers) < WORKERS:
            number = len(self._processes)
            work = ("--work-dir", str(self._folder / f"work-{number}"), "--cores", "1", "--memory", "1g")
            log = self._start(f"worker-{number}", "Worker", *work, "--host", "127.0.0.1", self.master)
            self.workers.append(self._processes[-1])
            self._said(log, "Successfully registered with master")

    def kill_a_worker(self) -> None:
        """End a worker and its executor at once, as a machine that loses its power."""
        worker = self.workers.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(TIMEOUT)

    def end(self) -> None:
        """End everything that was started."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(TIMEOUT)

    def _start(self, name: str, kind: str, *words: str) -> Path:
        log = self._folder / f"{name}.log"
        environment = {
            **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": MEMORY,
        }
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _said(self, log: Path, text: str) -> None:
        process = self._processes[-1]

        def said() -> bool:
            assert process.poll() is None, log.read_text()
            return text in log.read_text()

        wait_until(said, TIMEOUT, log.read_text)


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run a cluster for a while."""
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.end()
