#!/bin/sh
# Installs system packages for building (`build`) and testing (`test`), as root on Debian and its derivatives;
# otherwise prints the command. Usage: packages.sh build [openssl] [test] [slurm] [containers] [browser]
set -u

missing=
need() { # PACKAGE TEST...: TEST succeeds if the package is there
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
has() { command -v "$1" || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

has_browser() { has chromium-headless-shell || has chromium || has chromium-browser || has google-chrome; }

for group in "$@"; do
    case $group in
    build)
        need g++ has c++
        need make has make
        # OpenSSL is built from source by a Perl script that uses these modules; Debian's perl-base lacks
        # them.
        need perl perl -MIPC::Cmd -MFindBin -MFile::Compare -e 1
        need python3 has python3
        # A user's own Python that is first on PATH needs no package.
        need python3-pip python3 -m pip --version
        ;;
    test)
        need openssh-client has ssh
        need openssh-client has ssh-keygen
        need openssh-server has sshd
        need iproute2 has ip
        need nftables has nft
        need util-linux has unshare
        need util-linux has nsenter
        need openssl has openssl
        need binutils has readelf
        need procps has ps
        need gcc has cc
        # A Python environment for the tests that compare with Gymnasium and PyTorch.
        need python3-venv python3 -c "import ensurepip, venv"
        ;;
    openssl)
        # Without it, OpenSSL is built from source.
        need libssl-dev test -n "$(sh "$(dirname "$0")/openssl.sh")"
        ;;
    slurm)
        # A real Slurm for tests/hosts/slurm.rs: a dozen packages, about 5 s.
        need slurmctld has slurmctld
        need slurmd has slurmd
        need slurm-client has srun
        need munge has munged
        ;;
    containers)
        # Real containers for tests/runs/agent/containers.rs.
        need podman has podman
        need runc has runc
        ;;
    browser)
        # A headless browser that opens reports: 60 MB, 18 packages.
        need chromium-headless-shell has_browser
        ;;
    *)
        echo "packages: unknown group \`$group\`; expected build, openssl, test, slurm, containers or browser" >&2
        exit 2
        ;;
    esac
done
if ! command -v cargo >/dev/null 2>&1; then
    echo "packages: cargo is missing; Rust 1.89 or newer comes from https://rustup.rs" >&2
    exit 1
fi
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ' | sed 's/^ *//; s/ *$//')
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "packages: missing: $missing; install them, then run this again:" >&2
    echo "    sudo apt-get install -y --no-install-recommends $missing" >&2
    command -v apt-get >/dev/null 2>&1 || echo "packages: (Debian's names; this system's may differ)" >&2
    exit 1
fi

# Tests start their own sshd; the system's must not start because a package was installed.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
echo "packages: installing $missing" >&2
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends $missing; }
# Package lists may be absent or old.
if ! install >&2 && ! { apt-get update -qq >&2 && install >&2; }; then
    echo "packages: apt-get could not install: $missing (its error is above)" >&2
    exit 1
fi
