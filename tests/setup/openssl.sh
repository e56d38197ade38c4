#!/bin/sh
# Prints the environment in which openssl-sys links the system's static OpenSSL, where there is one (Debian:
# libssl-dev). Elsewhere it prints nothing, and OpenSSL is built from source, which takes minutes. Usage: env
# $(sh openssl.sh) cargo build
set -u
compiler=${CC:-cc}
for name in libcrypto.a libssl.a; do
    path=$($compiler -print-file-name=$name 2>/dev/null) || exit 0
    [ -f "$path" ] || exit 0
done
header=$(printf '#include <openssl/opensslv.h>\nRESULT OPENSSL_VERSION_MAJOR\n' | $compiler -E -P - 2>/dev/null | tail -n 1)
case $header in
"RESULT 3" | "RESULT 4") ;;
*) exit 0 ;;
esac
folder=$(cd "$(dirname "$path")" && pwd) || exit 0
# The headers are on the compiler's own path; openssl-sys needs a named one.
[ -f /usr/include/openssl/opensslv.h ] || exit 0
echo "OPENSSL_NO_VENDOR=1 OPENSSL_STATIC=1 OPENSSL_LIB_DIR=$folder OPENSSL_INCLUDE_DIR=/usr/include"
