# shellcheck shell=bash disable=SC2086
# What `testbed fault` breaks and mends; read by `testbed`. A file fault.NAME in a host's folder marks a
# fault that lasts, for `testbed status`.

FAULT_HELP='network
  link down|up            the cable of the host; no packet announces it
  drop all|PORT|off       silently drop TCP both ways, of the whole host or one port (half-open)
  drop PCT%               lose that share of packets both ways
  lag MS [JITTER_MS [LOSS_%]]   delay each way; lag off
  rate KBIT|off           limit what reaches the host (instead of lag)
  reset [PORT]            RST every established connection (default: of its sshd)
processes
  kill                    all processes of the host die, their sockets are closed
  crash                   power loss: the link goes first, so peers get no message; then boot
  freeze|thaw             stop the whole host (cgroup v2, else SIGSTOP); the kernel still acknowledges
  stop sshd|sessions | cont    SIGSTOP of the listener, or of the sessions
  sshd kill|start|restart      only the listener; sessions go on
  drop-sessions           SIGKILL the sshd processes of sessions
files and login
  disk full|free          fill ~tb/work (a small tmpfs)
  hostkey                 a new host key; client/known_hosts keeps the old one
  keys none|ok            no public key is accepted, only the password
  slowlogin SECONDS       sleep in ~/.bashrc (bash reads it for `ssh host cmd` too)
  noisy                   ~/.bashrc writes to stdout and stderr
  badshell                the login shell does not exist (root mode)
  sshd-opt NAME "LINE"    a line for sshd_config, for example: m "MaxSessions 1"
  clear                   undo everything that can be undone'

mark() { touch "$DIR/node$1/fault.$2"; }
unmark() { rm -f "$DIR/node$1/fault."$2; }   # $2 is a pattern

reload_sshd() {                       # sshd writes its pid file again when it listens again
  local p
  sshd_config "$1"
  p=$(sshd_pid "$1") || return 0
  in_node "$1" sh -c "rm -f /run/sshd.pid; kill -HUP $p"
  poll "$PATIENCE" sshd_pid "$1" >/dev/null
}
rc_line() {                           # rc_line NODE NAME [LINE]: replaces the line NAME of ~/.bashrc
  local f=$DIR/node$1/home/tb/.bashrc
  sed -i "/# $2\$/d" "$f"
  if [[ -n ${3:-} ]]; then echo "$3 # $2" >>"$f"; fi
}
login_shell() {                       # login_shell NODE SHELL; the file is mounted, so it keeps its inode
  local d=$DIR/node$1
  sed "s#^\\(tb:.*:\\).*#\\1$2#" "$d/passwd" >"$d/passwd.tmp"
  cat "$d/passwd.tmp" >"$d/passwd"
}
session_pids() { in_node "$1" pgrep -f '^sshd: tb' || true; }

lag() {                               # lag I MS JITTER LOSS; MS off = undo
  local i=$1 ms=$2 jitter=${3:-0} loss=${4:-0} q p
  in_console tc qdisc del dev "v$i" root 2>/dev/null || true
  if alive "${p:=$(cat "$DIR/node$i/lag.pid" 2>/dev/null || true)}"; then
    kill "$p"; gone() { ! alive "$p"; }; poll "$PATIENCE" gone || true
  fi
  rm -f "$DIR/node$i/lag.pid"
  node_pid "$i" >/dev/null && in_node "$i" tc qdisc del dev eth0 root 2>/dev/null || true
  in_console ip link set "v$i" master br0 2>/dev/null || true
  in_console ip link del "d$i" 2>/dev/null || true
  unmark "$i" "lag*"; unmark "$i" "rate*"
  [[ $ms = off ]] && return
  q="delay ${ms}ms ${jitter}ms loss ${loss}%"
  if in_console tc qdisc add dev "v$i" root netem $q 2>/dev/null; then
    in_node "$i" tc qdisc add dev eth0 root netem $q
  else                                # this kernel has no netem: a relay between two taps
    in_console ip link add "d$i" type bridge
    in_console ip link set "d$i" up
    in_console ip link set "v$i" master "d$i"
    # shellcheck disable=SC2016
    in_console sh -c 'echo $$ >"$0" && exec setsid "$@"' "$DIR/node$i/lag.pid" \
      python3 "${SELF%/*}/lagtap.py" "a$i" "b$i" "$ms" "$jitter" "$loss" \
      </dev/null >"$DIR/node$i/log/lag.log" 2>&1 &
    poll "$PATIENCE" in_console ip link set "b$i" master br0 up \
      || { cat "$DIR/node$i/log/lag.log" >&2; lag "$i" off; die "lag: neither netem nor tap devices here"; }
    poll "$PATIENCE" in_console ip link set "a$i" master "d$i" up
  fi
  mark "$i" "lag=$ms,$jitter,$loss%"
}

drop() {
  local i=$1 what=$2 m
  in_node "$i" nft 'table inet testbed { }; delete table inet testbed'
  unmark "$i" "drop*"
  [[ $what = off ]] && return
  case $what in
    all)     m='meta l4proto tcp drop' ;;
    *%)      m="numgen random mod 1000 < $(awk -v p="${what%\%}" 'BEGIN { print int(p * 10) }') drop" ;;
    [0-9]*)  m="tcp dport $what drop; tcp sport $what drop" ;;
    *)       die "drop all|PORT|PCT%|off" ;;
  esac
  in_node "$i" nft "table inet testbed {
    chain i { type filter hook input priority 0; iif lo accept; $m; }
    chain o { type filter hook output priority 0; oif lo accept; $m; }
  }"
  mark "$i" "drop=$what"
}

freeze() {                            # freeze I 1|0
  if [[ -n $CG ]]; then
    echo "$2" >"$CG/node$1/cgroup.freeze"
  else                                # every process of the host but its init and this shell
    local signal=CONT; (( $2 )) && signal=STOP
    # shellcheck disable=SC2016
    in_node "$1" sh -c 'for d in /proc/[0-9]*; do
        p=${d#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -$0 $p
      done' $signal 2>/dev/null || true
  fi
}

kill_node() {
  local i=$1 p
  freeze "$i" 0
  lag "$i" off
  rm -f "$DIR/node$i"/fault.{link-down,drop*,rate*,frozen,stopped-*,no-sshd,disk-full}   # they die with it
  p=$(node_pid "$i") || return 0
  kill -KILL "$p"
  gone() { ! alive "$p"; }; poll "$PATIENCE" gone
  rm -f "$DIR/node$i/pid"
}

signal_sshd() {                       # signal_sshd NODE SIGNAL sshd|sessions|all
  local p=''
  [[ $3 = sessions ]] || p+=" $(sshd_pid "$1" || true)"
  [[ $3 = sshd ]] || p+=" $(session_pids "$1")"
  [[ -z ${p// } ]] || in_node "$1" kill "-$2" $p
}

sshd_fault() {                        # sshd_fault NODE kill|start|restart
  local i=$1
  case $2 in
    kill|restart) signal_sshd "$i" KILL sshd; mark "$i" no-sshd ;;&
    start|restart)
      sshd_pid "$i" >/dev/null || start_sshd "$i"
      poll "$PATIENCE" sshd_pid "$i" >/dev/null
      unmark "$i" no-sshd ;;
    kill) ;;
    *) die "sshd kill|start|restart" ;;
  esac
}

clear_faults() {
  local i=$1 d=$DIR/node$1
  if node_pid "$i" >/dev/null; then
    freeze "$i" 0
    in_console ip link set "v$i" up
    lag "$i" off
    command -v nft >/dev/null && drop "$i" off
    in_node "$i" rm -f /home/tb/work/.fill
  fi
  if [[ $MODE = root ]]; then login_shell "$i" /bin/bash; fi
  rc_line "$i" slow
  rc_line "$i" noisy
  cat "$DIR"/client/{id,id_enc}.pub >"$d/home/tb/.ssh/authorized_keys"
  rm -f "$d"/opt.* "$d"/fault.*
  client_config                       # trusts the host keys of now
  boot "$i"
  signal_sshd "$i" CONT all 2>/dev/null || true
  sshd_pid "$i" >/dev/null || start_sshd "$i"
  reload_sshd "$i"
}

fault() {
  [[ ${1:-help} = help ]] && { echo "$FAULT_HELP"; return; }
  load
  local i kind=${2:-} a=${3:-} d f=/home/tb/work/.fill
  i=$(index "$1"); d=$DIR/node$i
  [[ -n $kind ]] || die "fault NODE KIND (fault help)"
  case $kind in
    link)
      in_console ip link set "v$i" "${a:?down or up}"
      unmark "$i" link-down
      [[ $a = up ]] || mark "$i" link-down ;;
    drop)    drop "$i" "${a:?all, PORT, PCT% or off}" ;;
    lag)     lag "$i" "${a:?MS or off}" "${4:-0}" "${5:-0}" ;;
    rate)
      lag "$i" off
      [[ $a = off ]] && return
      in_console tc qdisc add dev "v$i" root tbf rate "${a:?KBIT}kbit" burst 16kb latency 400ms
      mark "$i" "rate=$a" ;;
    reset)   in_node "$i" ss -tHK state established "( sport = :${a:-22} )" >/dev/null ;;
    kill)    kill_node "$i" ;;
    crash)   in_console ip link set "v$i" down; kill_node "$i" ;;
    freeze)  freeze "$i" 1; mark "$i" frozen ;;
    thaw)    freeze "$i" 0; unmark "$i" frozen ;;
    stop)
      [[ $a = sshd || $a = sessions ]] || die "stop sshd|sessions"
      signal_sshd "$i" STOP "$a"
      mark "$i" "stopped-$a" ;;
    cont)    signal_sshd "$i" CONT all; unmark "$i" "stopped-*" ;;
    sshd)    sshd_fault "$i" "$a" ;;
    drop-sessions) signal_sshd "$i" KILL sessions ;;
    disk)
      case $a in
        full) in_node "$i" sh -c "dd if=/dev/zero of=$f bs=64k 2>/dev/null || true"; mark "$i" disk-full ;;
        free) in_node "$i" rm -f "$f"; unmark "$i" disk-full ;;
        *) die "disk full|free" ;;
      esac ;;
    hostkey)
      rm -f "$d"/ssh/host_key{,.pub}
      ssh-keygen -q -t ed25519 -N '' -C "node$i-new" -f "$d/ssh/host_key"
      reload_sshd "$i"
      mark "$i" new-hostkey ;;
    keys)
      case $a in
        none) : >"$d/home/tb/.ssh/authorized_keys"; mark "$i" no-keys ;;
        ok) cat "$DIR"/client/{id,id_enc}.pub >"$d/home/tb/.ssh/authorized_keys"; unmark "$i" no-keys ;;
        *) die "keys none|ok" ;;
      esac ;;
    slowlogin) rc_line "$i" slow "sleep ${a:?SECONDS}"; mark "$i" slowlogin ;;
    noisy)
      rc_line "$i" noisy "echo 'Welcome to node$i!'; echo 'warning: module not found' >&2"
      mark "$i" noisy ;;
    badshell)
      [[ $MODE = root ]] || die "badshell: root mode"
      login_shell "$i" /bin/no-such-shell
      mark "$i" badshell ;;
    sshd-opt) printf '%s\n' "${4:?LINE}" >"$d/opt.${a:?NAME}"; reload_sshd "$i" ;;
    clear)   clear_faults "$i" ;;
    *) die "no such fault: $kind (fault help)" ;;
  esac
}
