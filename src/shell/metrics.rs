//! The run for Prometheus: `GET /metrics` in OpenMetrics text, as `--metrics ADDRESS:PORT` asks.
//!
//! Owner: a task beside the console's loop; the loop writes the text, the task speaks HTTP. Invariants:
//! - METRICS-1: at most [`CONNECTIONS`] connections at a time, each for [`WITHIN`] at most and with
//!   [`REQUEST_BYTES`] of request; more wait in the system's queue.
//! - Nobody but this machine is served unless the address says so.

mod text;

pub use text::text;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Most connections at a time.
const CONNECTIONS: usize = 8;
/// How long a connection may take.
const WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of a request.
const REQUEST_BYTES: usize = 8 << 10;
/// What the answer is.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where to write the text to.
pub type Wanted = oneshot::Sender<String>;

/// An endpoint that is open.
pub struct Endpoint {
    address: SocketAddr,
    wanted: mpsc::Receiver<Wanted>,
    server: JoinHandle<()>,
}

/// Reads `9464`, `:9464`, `127.0.0.1:9464`, `[::]:9464`.
pub fn parse(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse().map_err(|_| "expected PORT, or ADDRESS:PORT such as 127.0.0.1:9464".to_owned())
}

impl Endpoint {
    /// Opens it.
    ///
    /// # Errors
    /// The port is taken, or the address is not this machine's.
    pub async fn open(address: SocketAddr) -> io::Result<Endpoint> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (asks, wanted) = mpsc::channel(CONNECTIONS);
        let server = tokio::spawn(serve(listener, asks));
        Ok(Endpoint { address, wanted, server })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Somebody asks. Cancel-safe; never ends.
    pub async fn asked(&mut self) -> Wanted {
        match self.wanted.recv().await {
            Some(wanted) => wanted,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, asks: mpsc::Sender<Wanted>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut open = tokio::task::JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: the next one may find some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let asks = asks.clone();
        open.spawn(async move {
            let _ = tokio::time::timeout(WITHIN, answer(stream, asks)).await;
            drop(permit);
        });
    }
}

async fn answer(mut stream: TcpStream, asks: mpsc::Sender<Wanted>) -> io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let read = stream.read(&mut part).await?;
        request.extend_from_slice(&part[..read]);
        if read == 0 || request.len() > REQUEST_BYTES {
            return reply(
                &mut stream,
                "400 Bad Request",
                "text/plain",
                "a request of this kind is not served\n",
            )
            .await;
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET", "/metrics") => {
            let (to, text) = oneshot::channel();
            let _ = asks.send(to).await;
            match text.await {
                Ok(text) => reply(&mut stream, "200 OK", CONTENT_TYPE, &text).await,
                Err(_) => {
                    reply(&mut stream, "503 Service Unavailable", "text/plain", "the console ends\n").await
                }
            }
        }
        ("GET", _) => reply(&mut stream, "404 Not Found", "text/plain", "there is only /metrics\n").await,
        _ => reply(&mut stream, "405 Method Not Allowed", "text/plain", "only GET is served\n").await,
    }
}

async fn reply(stream: &mut TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn metrics_are_served_and_nothing_else() {
        let mut endpoint = Endpoint::open(parse("0").unwrap()).await.unwrap();
        let address = endpoint.address();
        assert!(address.ip().is_loopback());
        let loop_of_console = tokio::spawn(async move {
            loop {
                let _ = endpoint.asked().await.send("x 1\n# EOF\n".into());
            }
        });
        let text = ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nx 1\n# EOF\n"), "{text}");
        assert!(text.contains("openmetrics-text; version=1.0.0"));
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        loop_of_console.abort();
    }

    #[tokio::test]
    async fn metrics_1_connections_that_say_nothing_take_no_more_than_their_places() {
        let mut endpoint = Endpoint::open(parse("127.0.0.1:0").unwrap()).await.unwrap();
        let address = endpoint.address();
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS - 1 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = tokio::spawn(async move {
            let _ = endpoint.asked().await.send("# EOF\n".into());
            endpoint
        });
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").await.ends_with("# EOF\n"));
        drop(asked.await.unwrap());
        assert!(TcpStream::connect(address).await.is_err() || silent.len() == CONNECTIONS - 1);
    }

    #[test]
    fn a_port_alone_is_of_this_machine() {
        assert_eq!(parse("9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse(":9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(parse("x").is_err() && parse("99999").is_err());
    }
}
