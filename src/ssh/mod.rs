//! SSH sessions over ssh2: login, known hosts, upload, jump.
