#!/bin/sh
# Sees that the machine has what some tests need:
# system.sh PYTHON mariadb|mysql|postgresql|pgbouncer|topologies|faketime|systemd|spark|jdbc|browser|prometheus|redis
# As root on Debian it installs what is missing, otherwise it says what is. No system server is started.
# MySQL's server is mysql-server.sh's affair. With DATABASE_URL set, the server is somebody else's and only the client
# library is needed.
set -eu
python=$1
server=$2
missing=""

has() {
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]
}

scheme=mysql
case $server in
mariadb | mysql)
    if [ "$server" = mariadb ] && [ -z "${DATABASE_URL:-}" ] && ! { has mariadbd && has mariadb-install-db; }; then
        missing="$missing mariadb-server"
    fi
    has cc || missing="$missing gcc libc6-dev"
    has pkg-config || missing="$missing pkg-config"
    if ! has pkg-config || ! { pkg-config --exists mysqlclient || pkg-config --exists mariadb || pkg-config --exists libmariadb; }; then
        missing="$missing libmariadb-dev"
    fi
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -f "$headers/Python.h" ] || missing="$missing python3-dev"
    ;;
postgresql) # its client library comes compiled
    scheme=postgresql
    if [ -z "${DATABASE_URL:-}" ] && ! has initdb && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
        missing="$missing postgresql"
    fi
    ;;
pgbouncer)
    has pgbouncer || missing="$missing pgbouncer"
    ;;
topologies) # beside the servers: who is in front of them, how Galera's nodes copy their data, and networks for nodes
    has haproxy || missing="$missing haproxy"
    [ -f /usr/lib/galera/libgalera_smm.so ] || missing="$missing galera-4"
    has rsync || missing="$missing rsync"
    has ss || has lsof || missing="$missing iproute2"
    has ip || missing="$missing iproute2"
    ;;
faketime)
    ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || missing="$missing faketime"
    ;;
systemd) # its tool for unit files; nothing of it is started
    has systemd-analyze || missing="$missing systemd"
    ;;
spark)
    has java || [ -x "${JAVA_HOME:-}/bin/java" ] || missing="$missing openjdk-17-jre-headless"
    ;;
jdbc) # the driver that Spark's own JDBC source needs
    [ -f "${JDBC_JAR:-/usr/share/java/mariadb-java-client.jar}" ] || missing="$missing libmariadb-java"
    ;;
browser) # CHROMIUM names another one
    has "${CHROMIUM:-chromium}" || has chromium-browser || has google-chrome || missing="$missing chromium"
    ;;
prometheus)
    has promtool || missing="$missing prometheus"
    ;;
redis) # for the comparison with queues that live in one
    has redis-server || missing="$missing redis-server"
    ;;
*)
    echo "system.sh knows mariadb, mysql, postgresql, pgbouncer, topologies, faketime, systemd, spark, jdbc, browser, prometheus and redis, not '$server'." >&2
    exit 2
    ;;
esac

[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! has apt-get; then
    if [ "$server" = spark ]; then
        echo "Spark needs Java 17 or 21, and this machine has none. On Debian and Ubuntu, as root:" >&2
        echo "apt-get install$missing" >&2
        exit 1
    fi
    if [ "$server" = jdbc ]; then
        echo "Without libmariadb-java (or JDBC_JAR=/path/to/a/driver.jar) Spark's JDBC source is not compared with." >&2
        exit 0
    fi
    if [ "$server" = redis ]; then
        echo "The comparison with queues on Redis needs its server. On Debian and Ubuntu, as root:" >&2
        echo "apt-get install$missing" >&2
        exit 1
    fi
    if [ "$server" = browser ]; then
        echo "The tests in a browser need Chromium, and this machine has none. On Debian, as root:" >&2
        echo "apt-get install$missing" >&2
        echo "Or name a Chromium or Chrome that you have: CHROMIUM=/path/to/it make test-browser" >&2
        exit 1
    fi
    if [ "$server" = topologies ]; then
        echo "The topologies need packages that this machine lacks. On Debian and Ubuntu, as root:" >&2
        echo "apt-get install$missing" >&2
        exit 1
    fi
    echo "The tests on $server need packages that this machine lacks:$missing" >&2
    echo "On Debian and Ubuntu, as root: apt-get install$missing" >&2
    echo "Or set DATABASE_URL=$scheme://user:password@host:port/name to use a server of yours (the packages of" >&2
    echo "the server are then not needed; the user must be allowed to create the database test_name)." >&2
    exit 1
fi

# Debian starts a server when its package is installed, unless this policy says no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null
# shellcheck disable=SC2086 # a list of words
apt-get install -qq -y --no-install-recommends $missing </dev/null
