"""A private MySQL server, of the machine or of Debian's unstable packages in a folder."""

import os
import subprocess
import tempfile
from pathlib import Path

from tests.servers.mariadb import BINARY_LOG, greets, run_as
from tests.servers.private import PrivateServer, ServerError, find_program

NO_BINARY_LOG = ("--skip-log-bin",)  # MySQL has one unless told
# Where `make test-mysql` puts Debian's packages.
DEBIAN = Path(os.environ.get("MYSQL_FOLDER") or Path(__file__).resolve().parent.parent.parent / "var" / "mysql")
# A server that is initialized lets root in from "localhost" only, a name that it does not look up.
ADMIT_ROOT = """\
CREATE USER root@'127.0.0.1' IDENTIFIED WITH caching_sha2_password BY '';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
"""


class PrivateMySQL(PrivateServer):
    """A MySQL server on a fresh data directory, on 127.0.0.1 and a Unix socket; root has no password.

    `log_bin` turns the binary log on; `options` are more words for mysqld, later ones win.
    """

    product = "MySQL"
    scheme = "mysql"
    superuser = "root"

    def __init__(self, *, log_bin: bool = False, options: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._options = (*(BINARY_LOG if log_bin else NO_BINARY_LOG), *options)
        self._mysqld = machines_own()
        self._root = Path("/") if self._mysqld else DEBIAN

    def new_folder(self) -> Path:
        """A server in another root has its files there."""
        if self._mysqld:
            return super().new_folder()
        if not (DEBIAN / "usr/sbin/mysqld").is_file():
            raise ServerError(
                f"There is no MySQL server on this machine, nor in {DEBIAN}. `make test-mysql` installs one there, as "
                "root on Debian. Or set DATABASE_URL=mysql://user:password@host:port/name to use a server of yours."
            )
        if os.geteuid():
            raise ServerError(f"Only root may run the MySQL server in {DEBIAN}.")
        return Path(tempfile.mkdtemp(prefix="sqlqueue-", dir=DEBIAN / "tmp"))

    def install(self) -> None:
        """Make a data directory."""
        (self.folder / "admit.sql").write_text(ADMIT_ROOT)
        self.run(
            *self._program(),
            f"--datadir={self._inside / 'data'}",
            "--initialize-insecure",
            f"--init-file={self._inside / 'admit.sql'}",
            *NO_BINARY_LOG,
        )

    def command(self) -> list[str]:
        """Return mysqld and its options."""
        return [
            *self._program(),
            f"--datadir={self._inside / 'data'}",
            f"--socket={self._inside / 'socket'}",
            f"--pid-file={self._inside / 'pid'}",
            f"--tmpdir={self._inside}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_unicode_ci",
            "--max-connections=300",
            "--lock-wait-timeout=60",  # a forgotten transaction fails a test's clean-up, and does not hang it for a day
            "--innodb-buffer-pool-size=256M",
            "--innodb-flush-log-at-trx-commit=1",
            *self._options,
        ]

    def answers(self) -> bool:
        """Return whether the server has said that it is the one that was launched, and greets clients."""
        try:
            ready = int((self.folder / "pid").read_text()) == self.pid
        except (OSError, ValueError):
            return False
        return ready and greets(("127.0.0.1", self.port))

    @property
    def _inside(self) -> Path:
        """The folder's path as the server sees it."""
        return Path("/") / self.folder.relative_to(self._root)

    def _program(self) -> list[str]:
        return [
            *([self._mysqld] if self._mysqld else ["chroot", str(DEBIAN), "/usr/sbin/mysqld"]),
            "--no-defaults",
            *run_as(),
        ]


def machines_own() -> str | None:
    """Return the machine's mysqld if it is MySQL's: MariaDB has a program of that name too."""
    program = find_program("mysqld")
    if program is None:
        return None
    version = subprocess.run(
        [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return program if version.returncode == 0 and "MariaDB" not in version.stdout else None
