#!/bin/sh
# Sees that there is a MySQL server to run the tests on: mysql-server.sh FOLDER
# Debian stable has none, so unless the machine's own mysqld is one, Debian unstable's goes into a folder of its own
# (about two minutes, 600 MB), from the mirror that apt uses, and is run there with chroot. Nothing outside the folder
# is changed. As root only; otherwise it says what to do. With DATABASE_URL set, the server is somebody else's.
set -eu
folder=$1
PATH=$PATH:/usr/sbin:/usr/local/sbin

[ -z "${DATABASE_URL:-}" ] || exit 0
[ ! -x "$folder/usr/sbin/mysqld" ] || exit 0
if command -v mysqld >/dev/null && mysqld --version | grep -qv MariaDB; then
    exit 0
fi

refuse() {
    echo "There is no MySQL server for the tests: $1" >&2
    echo "Set DATABASE_URL=mysql://user:password@host:port/name to use one of yours (the user must be allowed to create" >&2
    echo "the database test_name), or install MySQL's mysqld; or run this as root on Debian, where it installs one." >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || refuse "only root may install Debian's into $folder and run it there."
command -v apt-get >/dev/null || refuse "this is no Debian."

# The site from which apt has Debian itself, and apt's proxy if it has one.
site() {
    apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sed -n 's/^Debian|//p' | head -n 1
}
mirror=$(site)
if [ -z "$mirror" ]; then
    apt-get update -qq </dev/null
    mirror=$(site)
fi
[ -n "$mirror" ] || refuse "apt knows no mirror of Debian."
eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
[ -z "${http_proxy:-}" ] || export http_proxy
if ! command -v debootstrap >/dev/null; then
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends debootstrap </dev/null
fi

echo "Installing MySQL from Debian unstable into $folder (about two minutes)"
mkdir -p "$(dirname "$folder")"
# Under another name until it is whole. One file system: /proc may still be mounted in what was interrupted.
part=$folder.part
rm -rf --one-file-system "$part"
if ! debootstrap --variant=minbase --include=mysql-server-core,mysql-client sid "$part" "$mirror" >"$folder.log" 2>&1 </dev/null; then
    tail -n 20 "$folder.log" "$part/debootstrap/debootstrap.log" >&2 || true
    refuse "debootstrap failed."
fi
rm -rf "$part/var/cache/apt"
mv "$part" "$folder"
