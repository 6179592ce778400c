"""Which topologies there are, by their names."""

from tests.soak.topologies.galera import Galera
from tests.soak.topologies.galera_writable import GaleraWritable
from tests.soak.topologies.group_replication import GroupReplication
from tests.soak.topologies.mariadb_async import MariaDBAsync
from tests.soak.topologies.mariadb_semisync import MariaDBSemisync
from tests.soak.topologies.postgresql_streaming import PostgreSQLStreaming
from tests.soak.topologies.several_databases import Databases
from tests.soak.topologies.topology import Topology

KINDS: tuple[type[Topology], ...] = (
    MariaDBAsync,
    MariaDBSemisync,
    PostgreSQLStreaming,
    Galera,
    GaleraWritable,
    GroupReplication,
    Databases,
)
TOPOLOGIES = {kind.name: kind for kind in KINDS}
