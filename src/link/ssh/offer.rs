//! What a server offers in a key exchange, for words about one that shares nothing with us.
//!
//! libssh2 keeps the server's offer to itself, so it is asked for once more, over a connection of its own:
//! greeting and `SSH_MSG_KEXINIT` come before anything is encrypted (RFC 4253, 4.2 and 7.1).

use super::keys;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Bound of each read.
const READING: Duration = Duration::from_secs(5);
/// Largest packet that a key exchange begins with.
const MAX_PACKET: u32 = 64 << 10;
/// Most bytes before the end of the greeting.
const MAX_GREETING: usize = 16 << 10;
const KEXINIT: u8 = 20;

/// The server's lists, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// Key exchanges.
    pub kex: Vec<String>,
    pub host_keys: Vec<String>,
    /// Ciphers, from it to us.
    pub ciphers: Vec<String>,
    /// Message authentication codes, from it to us.
    pub macs: Vec<String>,
}

/// Asks the server at the other end of `stream`.
pub fn ask(mut stream: TcpStream) -> io::Result<Offer> {
    stream.set_read_timeout(Some(READING))?;
    stream.set_write_timeout(Some(READING))?;
    stream.write_all(concat!("SSH", "-2.0-rankdeck\r\n").as_bytes())?;
    let mut line = Vec::new();
    let mut count = 0;
    // Lines before the greeting are allowed.
    while !(line.starts_with(b"SSH-") && line.ends_with(b"\n")) {
        if line.ends_with(b"\n") {
            line.clear();
        }
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
        count += 1;
        if count > MAX_GREETING {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes(head);
    if length > MAX_PACKET {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut packet = vec![0; length as usize];
    stream.read_exact(&mut packet)?;
    read(&packet).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The lists of a packet without its length: padding's length, message, cookie, ten lists.
fn read(packet: &[u8]) -> Option<Offer> {
    let (_padding, message) = packet.split_first()?;
    let mut rest = message.strip_prefix(&[KEXINIT])?.get(16..)?;
    let mut list = || {
        let text = String::from_utf8_lossy(keys::string(&mut rest)?).into_owned();
        Some(text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>())
    };
    let (mut kex, host_keys, _, ciphers) = (list()?, list()?, list()?, list()?);
    let (_, macs) = (list()?, list()?);
    // Marks of extensions stand among the key exchanges (RFC 8308, and OpenSSH's PROTOCOL).
    kex.retain(|name| !name.starts_with("ext-info-") && !name.starts_with("kex-strict-"));
    Some(Offer { kex, host_keys, ciphers, macs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_a_packet_are_read_and_cut_packets_are_not() {
        let lists = [
            "k1,ext-info-s,k2,kex-strict-s-v00@openssh.com",
            "h",
            "c1",
            "c2,c3",
            "m1",
            "m2",
            "none",
            "none",
            "",
            "",
        ];
        let mut packet = vec![4, KEXINIT];
        packet.extend([7; 16]);
        for list in lists {
            packet.extend((list.len() as u32).to_be_bytes());
            packet.extend(list.as_bytes());
        }
        let offer = read(&packet).unwrap();
        assert_eq!((offer.kex, offer.host_keys), (vec!["k1".to_owned(), "k2".into()], vec!["h".to_owned()]));
        assert_eq!((offer.ciphers, offer.macs), (vec!["c2".to_owned(), "c3".into()], vec!["m2".to_owned()]));
        for end in 0..packet.len() - 16 {
            read(&packet[..end]);
        }
        assert_eq!(read(&packet[..40]), None);
    }
}
