"""A private MySQL server that is the only member of a replication group, of those that have several primaries."""

from tests.servers.mysql import PrivateMySQL
from tests.servers.private import free_port

GROUP = "5a5a5a5a-0000-4000-8000-5c1a57e55e01"
BEGIN = (
    "SET GLOBAL group_replication_bootstrap_group = ON",
    "START GROUP_REPLICATION",
    "SET GLOBAL group_replication_bootstrap_group = OFF",
)


class GroupMember(PrivateMySQL):
    """It is a member once the statements of BEGIN have run. The increment is 1, as where an administrator has set it
    so."""

    def __init__(self) -> None:
        super().__init__(
            log_bin=True,
            options=(
                "--gtid-mode=ON",
                "--enforce-gtid-consistency=ON",
                "--plugin-load-add=group_replication.so",
                f"--group-replication-group-name={GROUP}",
                "--group-replication-start-on-boot=OFF",
                f"--group-replication-local-address=127.0.0.1:{free_port()}",
                "--group-replication-single-primary-mode=OFF",
                "--group-replication-enforce-update-everywhere-checks=ON",
                "--group-replication-auto-increment-increment=1",
            ),
        )
