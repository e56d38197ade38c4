//! The run for Prometheus: `GET /metrics` in OpenMetrics text, as `--metrics ADDRESS:PORT` asks, or a file
//! for the textfile collector of a node exporter.
//!
//! Owner: tasks beside the console's loop; the loop writes the text, the tasks speak HTTP and write the file.
//! Invariants:
//! - METRICS-1: at most [`CONNECTIONS`] connections at a time, each for [`WITHIN`] at most and with
//!   [`REQUEST_BYTES`] of request; more wait in the system's queue.
//! - Nobody but this machine is served unless the address says so.

mod text;

pub use text::{Form, text};

use super::stderr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
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

/// Who asks: in which form, and where to write the text to.
#[derive(Debug)]
pub struct MetricsRequest {
    pub form: Form,
    /// For the text.
    pub answer: oneshot::Sender<String>,
}

/// A file that is written again and again, whole at any moment.
#[derive(Debug, Clone)]
pub struct Textfile {
    /// The file; a node exporter reads those that end with `.prom`.
    pub path: PathBuf,
    /// Between two times.
    pub every: Duration,
}

impl Textfile {
    /// Replaces what is in it.
    ///
    /// # Errors
    /// The folder is gone, full or somebody else's.
    pub fn write(&self, text: &str) -> io::Result<()> {
        // Another user's exporter reads it, so it has the usual mode; nobody reads half of what is renamed.
        let beside = self.path.with_extension("prom.tmp");
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, &self.path)
    }
}

/// Those who ask: an endpoint that is open, a file, or both.
pub struct Endpoint {
    address: Option<SocketAddr>,
    wanted: mpsc::Receiver<MetricsRequest>,
    tasks: Vec<JoinHandle<()>>,
    /// For a receiver that never ends.
    _asks: mpsc::Sender<MetricsRequest>,
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
    /// The port is taken, or the address is not this machine's; the file cannot be written.
    pub async fn open(listen: Option<SocketAddr>, file: Option<Textfile>) -> io::Result<Endpoint> {
        let (asks, wanted) = mpsc::channel(CONNECTIONS);
        let (mut address, mut tasks) = (None, Vec::new());
        if let Some(listen) = listen {
            let listener = TcpListener::bind(listen).await?;
            address = Some(listener.local_addr()?);
            tasks.push(tokio::spawn(serve(listener, asks.clone())));
        }
        if let Some(file) = file {
            // What cannot be written is said before anything is waited for.
            file.write("")?;
            tasks.push(tokio::spawn(keep(file, asks.clone())));
        }
        Ok(Endpoint { address, wanted, tasks, _asks: asks })
    }

    /// Where it is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Somebody asks. Cancel-safe; never ends.
    pub async fn asked(&mut self) -> MetricsRequest {
        match self.wanted.recv().await {
            Some(wanted) => wanted,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Writes the file anew, as often as it wants; a failure is said once, and what was there stays.
async fn keep(file: Textfile, asks: mpsc::Sender<MetricsRequest>) {
    let mut said = false;
    loop {
        let (answer, text) = oneshot::channel();
        if asks.send(MetricsRequest { form: Form::Prometheus, answer }).await.is_err() {
            return;
        }
        if let Ok(text) = text.await
            && let Err(error) = file.write(&text)
            && !std::mem::replace(&mut said, true)
        {
            stderr::line(&format!("warning: {}: {error}; figures there are old", file.path.display()));
        }
        tokio::time::sleep(file.every).await;
    }
}

async fn serve(listener: TcpListener, asks: mpsc::Sender<MetricsRequest>) {
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

async fn answer(mut stream: TcpStream, asks: mpsc::Sender<MetricsRequest>) -> io::Result<()> {
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
            let (answer, text) = oneshot::channel();
            let _ = asks.send(MetricsRequest { form: Form::OpenMetrics, answer }).await;
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
        let mut endpoint = Endpoint::open(Some(parse("0").unwrap()), None).await.unwrap();
        let address = endpoint.address().unwrap();
        assert!(address.ip().is_loopback());
        let loop_of_console = tokio::spawn(async move {
            loop {
                let _ = endpoint.asked().await.answer.send("x 1\n# EOF\n".into());
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
        let mut endpoint = Endpoint::open(Some(parse("127.0.0.1:0").unwrap()), None).await.unwrap();
        let address = endpoint.address().unwrap();
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS - 1 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = tokio::spawn(async move {
            let _ = endpoint.asked().await.answer.send("# EOF\n".into());
            endpoint
        });
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").await.ends_with("# EOF\n"));
        drop(asked.await.unwrap());
        assert!(TcpStream::connect(address).await.is_err() || silent.len() == CONNECTIONS - 1);
    }

    #[tokio::test]
    async fn a_textfile_is_written_whole_and_again_and_a_folder_that_is_not_there_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| Textfile { path: folder.path().join(name), every: Duration::from_millis(1) };
        assert!(Endpoint::open(None, Some(file("nowhere/run.prom"))).await.is_err());
        let mut endpoint = Endpoint::open(None, Some(file("run.prom"))).await.unwrap();
        for n in 0..3 {
            let wanted = endpoint.asked().await;
            assert_eq!(wanted.form, Form::Prometheus);
            if n > 0 {
                let before = std::fs::read_to_string(folder.path().join("run.prom")).unwrap();
                assert_eq!(before, format!("x {}\n", n - 1));
            }
            wanted.answer.send(format!("x {n}\n")).unwrap();
        }
        assert!(endpoint.address().is_none());
    }

    #[test]
    fn a_port_alone_is_of_this_machine() {
        assert_eq!(parse("9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse(":9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(parse("x").is_err() && parse("99999").is_err());
    }
}
