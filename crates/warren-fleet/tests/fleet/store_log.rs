//! The history of the store, revision by revision, as the store itself reports it.

use std::time::Duration;

use etcd_client::{Client, EventType, GetOptions, WatchOptions};

use super::support::etcd::Store;

/// Keys with their new values, or `None` if they were deleted.
pub(crate) type Writes = Vec<(String, Option<Vec<u8>>)>;

/// All writes of a fleet since a revision.
#[derive(Default)]
pub(crate) struct StoreLog {
    /// Everything that the store had at the beginning.
    pub(crate) base: Writes,
    /// The writes of each revision, in order.
    pub(crate) revisions: Vec<(i64, Writes)>,
    next: i64,
}

const FLEET: &str = "/warren/fleet/";

/// A key that only this log writes.
const MARK: &str = "/warren/log";

/// Maximum size of a message from etcd. The messages of a log may be large.
const MOST_BYTES: usize = 256 << 20;

impl StoreLog {
    /// Begins a log with the present content of the store.
    pub(crate) fn begin(store: &Store) -> Result<Self, String> {
        in_time(async {
            let client = Client::connect(store.members(), None).await?;
            let mut kv = client.kv_client().max_decoding_message_size(MOST_BYTES);
            let got = kv.get(FLEET, Some(GetOptions::new().with_prefix())).await?;
            let pair = |kv: &etcd_client::KeyValue| (text(kv.key()), Some(kv.value().to_vec()));
            let next = got.header().map_or(0, |header| header.revision()) + 1;
            Ok(Self { base: got.kvs().iter().map(pair).collect(), revisions: Vec::new(), next })
        })
    }

    /// Adds the writes since the previous call. Returns the revision up to which the log goes now.
    pub(crate) fn read(&mut self, store: &Store) -> Result<i64, String> {
        in_time(async {
            let mut client = Client::connect(store.members(), None).await?;
            let marked = client.put(MARK, "", None).await?;
            let last = marked.header().map_or(0, |header| header.revision());
            let options = WatchOptions::new().with_prefix().with_start_revision(self.next);
            let mut watch = client.watch_client().max_decoding_message_size(MOST_BYTES);
            let mut stream = watch.watch("/warren/", Some(options)).await?;
            while self.next <= last {
                let Some(message) = stream.message().await? else { break };
                for event in message.events() {
                    let Some(kv) = event.kv() else { continue };
                    let value = (event.event_type() == EventType::Put).then(|| kv.value().to_vec());
                    self.add(kv.mod_revision(), text(kv.key()), value);
                }
                if message.compact_revision() > 0 {
                    return Err(etcd_client::Error::WatchError("the log was compacted".to_owned()));
                }
            }
            Ok(last)
        })
    }

    fn add(&mut self, revision: i64, key: String, value: Option<Vec<u8>>) {
        self.next = revision + 1;
        if !key.starts_with(FLEET) {
            return;
        }
        match self.revisions.last_mut() {
            Some((last, writes)) if *last == revision => writes.push((key, value)),
            _ => self.revisions.push((revision, vec![(key, value)])),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn in_time<T>(reading: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), reading).await });
    read.map_err(|_| "the store's log cannot be read".to_owned())?.map_err(|error| error.to_string())
}
