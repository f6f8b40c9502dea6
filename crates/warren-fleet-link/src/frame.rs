//! Frames: a length of four bytes, big-endian, then a message as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum size of a frame's JSON in bytes. [`crate::MAX_ROWS`] rows of the largest kind fit.
pub const MAX_FRAME: usize = 16 << 20;

/// Why a message could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The socket failed, or the other side ended within a frame.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The frame is longer than [`MAX_FRAME`].
    #[error("a message of {0} bytes is longer than {MAX_FRAME} bytes")]
    TooLong(usize),
    /// The frame is not a message of this version.
    #[error("a message cannot be read: {0}")]
    Invalid(#[from] serde_json::Error),
}

/// Reads a message. `None` if the other side has closed the connection between two frames.
///
/// Not cancel safe: if a read is dropped before it has finished, bytes are lost. Use a separate task for it.
///
/// # Errors
/// When the socket fails, or the frame is too long or not a message.
pub async fn read_frame<M: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<M>, FrameError> {
    let mut length = [0; 4];
    if from.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..]).await?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(FrameError::TooLong(length));
    }
    let mut json = vec![0; length];
    from.read_exact(&mut json).await?;
    Ok(Some(serde_json::from_slice(&json)?))
}

/// Writes a message.
///
/// # Errors
/// When the socket fails, or the message is too long. In that case nothing is written.
pub async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), FrameError> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).ok().filter(|_| json.len() <= MAX_FRAME);
    let length = length.ok_or(FrameError::TooLong(json.len()))?;
    to.write_all(&[length.to_be_bytes().as_slice(), &json].concat()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::time::Duration;

    use warren_session::PublicKey;

    use super::*;
    use crate::{ExitId, ExitMessage, FleetMessage, Outcome, StoreLink};

    fn now<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn messages_come_back_one_after_the_other() {
        let mut bytes = Vec::new();
        now(async {
            write_frame(&mut bytes, &ExitMessage::Applied { revision: 7 }).await.unwrap();
            write_frame(&mut bytes, &ExitMessage::Applied { revision: 8 }).await.unwrap();
            let mut from = bytes.as_slice();
            assert_eq!(read_frame(&mut from).await.unwrap(), Some(ExitMessage::Applied { revision: 7 }));
            assert_eq!(read_frame(&mut from).await.unwrap(), Some(ExitMessage::Applied { revision: 8 }));
            assert_eq!(read_frame::<ExitMessage>(&mut from).await.unwrap(), None);
        });
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
        let mut from: &[u8] = &[0xff, 0xff, 0xff, 0xff];
        let refused = now(read_frame::<FleetMessage>(&mut from));
        assert!(matches!(refused, Err(FrameError::TooLong(0xffff_ffff))), "{refused:?}");
    }

    #[test]
    fn answers_and_wireguard_keys_come_back() {
        // Half of all strings are not on the curve, and a WireGuard client's key need not be on it.
        for byte in 0..20 {
            let (key, nonce) = (PublicKey([byte; 32]), vec![byte]);
            let exit = ExitId::try_from("ams".to_owned()).unwrap();
            let opened = ExitMessage::Opened { key, nonce: nonce.clone(), claim: 1 };
            assert_eq!(sent(&opened), opened);
            let elsewhere = FleetMessage::Elsewhere { key, nonce, claim: 1, exit };
            assert_eq!(sent(&elsewhere), elsewhere);
        }
        for outcome in [Outcome::Stored { revision: 7 }, Outcome::Conflict, Outcome::Unavailable] {
            let answer = FleetMessage::Answer { id: 3, outcome };
            assert_eq!(sent(&answer), answer);
        }
        let away = StoreLink::Away { silent: Duration::from_secs(2), reason: "it is down".to_owned() };
        for store in
            [StoreLink::Reachable, away, StoreLink::Refused { reason: "no".to_owned(), is_removed: false }]
        {
            let message = FleetMessage::Store(store);
            assert_eq!(sent(&message), message);
        }
    }

    /// The message as the other side reads it.
    fn sent<M: Serialize + DeserializeOwned>(message: &M) -> M {
        let mut bytes = Vec::new();
        now(async {
            write_frame(&mut bytes, message).await.unwrap();
            read_frame(&mut bytes.as_slice()).await.unwrap().unwrap()
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
            let framed = [length.as_slice(), &bytes].concat();
            for bytes in [bytes, framed] {
                let _ = now(read_frame::<ExitMessage>(&mut bytes.as_slice()));
                let _ = now(read_frame::<FleetMessage>(&mut bytes.as_slice()));
            }
        }
    }
}
