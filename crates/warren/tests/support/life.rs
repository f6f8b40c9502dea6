//! Lives of real clients at three exits of a fleet: invited, enrolled, connected here and there, disabled, removed. Each step is
//! recorded.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use warren_control::{AskError, ClientChange, CutOff, Request};
use warren_quic::key::{PrivateKey, PublicKey};
use warren_session::clients::Invitation;
use warren_session::invite::InviteToken;

use super::faulty_fleet::EXITS;
use super::library_client::LibraryClient;
use super::real_clients::{Greeting, Outcome, Way, connect, enrol, probe};
use super::seconds;
use super::seen_history::{Operation, What};

/// How long a client waits for the echo of a packet.
const ECHO: Duration = Duration::from_millis(500);

/// The pause between two packets of a client that is shut out.
const PACE: Duration = Duration::from_millis(100);

/// How long a client goes on after it was removed or disabled: the two seconds of the promise, and some more.
const GOES_ON: Duration = Duration::from_millis(2_300);

/// What all lives share.
pub struct World {
    pub ways: Vec<Way>,
    /// The control sockets of the exits.
    pub sockets: Vec<PathBuf>,
    pub is_over: AtomicBool,
    pub operations: Mutex<Vec<Operation>>,
    /// The keys of all clients. A client's number is its place here.
    pub keys: Mutex<Vec<PublicKey>>,
    /// Clients that stay enrolled.
    pub stayed: Mutex<Vec<(usize, PrivateKey)>>,
    tokens: AtomicUsize,
    packets: AtomicU64,
}

impl World {
    pub fn new(ways: Vec<Way>, sockets: Vec<PathBuf>) -> Self {
        Self {
            ways,
            sockets,
            is_over: AtomicBool::new(false),
            operations: Mutex::default(),
            keys: Mutex::default(),
            stayed: Mutex::default(),
            tokens: AtomicUsize::new(0),
            packets: AtomicU64::new(0),
        }
    }

    fn new_key(&self) -> (usize, PrivateKey) {
        let key = PrivateKey::generate().unwrap();
        let mut keys = self.keys.lock().unwrap();
        keys.push(key.public());
        (keys.len() - 1, key)
    }

    fn note(&self, what: What, (client, exit): (usize, usize), begun: Instant, outcome: Outcome) {
        self.note_alone(what, (client, exit), begun, outcome, false);
    }

    fn note_alone(
        &self,
        what: What,
        (client, exit): (usize, usize),
        begun: Instant,
        outcome: Outcome,
        is_alone: bool,
    ) {
        let ended = Instant::now();
        self.operations.lock().unwrap().push(Operation {
            what,
            client,
            exit,
            begun,
            ended,
            outcome,
            is_alone,
        });
    }

    /// Makes an invitation at an exit. Returns its number and its token.
    pub async fn invite(&self, exit: usize) -> Option<(usize, InviteToken)> {
        let number = self.tokens.fetch_add(1, SeqCst);
        let mut bytes = [0; InviteToken::LENGTH];
        getrandom::fill(&mut bytes).unwrap();
        let token = InviteToken::new(bytes);
        let invitation = Invitation {
            name: name_of(number),
            token_sha256: token.digest(),
            expires: SystemTime::now() + seconds(86_400),
            used_by: None,
            upgrades: None,
        };
        let begun = Instant::now();
        let (outcome, _) = self.ask(exit, Request::ClientInvite { invitation }).await;
        self.note(What::Invite, (0, exit), begun, outcome);
        (outcome == Outcome::Done).then_some((number, token))
    }

    async fn ask(&self, exit: usize, request: Request) -> (Outcome, bool) {
        match warren_control::ask(&self.sockets[exit], &request).await {
            Ok(answer) => (Outcome::Done, CutOff::of(&answer).is_some_and(|cut_off| cut_off.away.is_some())),
            Err(AskError::Refused(_)) => (Outcome::Refused, false),
            Err(error @ AskError::TimedOut { .. }) => {
                println!("exit {exit} did not answer {request:?}: {error}");
                (Outcome::Unknown, false)
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Changes a client. Returns whether an exit has acknowledged that.
    async fn change(&self, what: What, guest: &Guest, exit: usize) -> bool {
        let name = name_of(guest.token);
        let request = match what {
            What::Remove => Request::ClientRemove { name },
            What::Disable => Request::ClientChange { name, change: ClientChange::Disable },
            What::Enable => Request::ClientChange { name, change: ClientChange::Enable },
            What::Invite | What::Enrol(_) | What::Connect(_) | What::Probe => panic!("{what:?} is no change"),
        };
        let begun = Instant::now();
        let (outcome, is_alone) = self.ask(exit, request).await;
        self.note_alone(what, (guest.number, exit), begun, outcome, is_alone);
        outcome == Outcome::Done
    }

    /// Redeems a token until there is a definite answer, at most five times.
    pub async fn enrol(
        &self,
        token: (usize, InviteToken),
        exit: usize,
        (number, key): (usize, &PrivateKey),
    ) -> Outcome {
        for _ in 0..5 {
            let begun = Instant::now();
            let outcome = enrol(self.ways[exit], key, &token.1).await;
            self.note(What::Enrol(token.0), (number, exit), begun, outcome);
            if outcome != Outcome::Unknown {
                return outcome;
            }
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        Outcome::Unknown
    }

    /// Opens a session at an exit.
    pub async fn connect(
        &self,
        exit: usize,
        (number, key): (usize, &PrivateKey),
    ) -> Option<(Box<LibraryClient>, Ipv4Addr)> {
        let begun = Instant::now();
        let greeting = connect(self.ways[exit], key).await;
        let (what, outcome, session) = match greeting {
            Greeting::Welcome(client, address) => {
                (What::Connect(Some(address)), Outcome::Done, Some((client, address)))
            }
            Greeting::Refused(_) => (What::Connect(None), Outcome::Refused, None),
            Greeting::Unknown => (What::Connect(None), Outcome::Unknown, None),
        };
        self.note(what, (number, exit), begun, outcome);
        session
    }

    /// Makes sure that nobody has the token any more.
    async fn forget(&self, token: usize) {
        for exit in 0..EXITS {
            let request = Request::ClientRemove { name: name_of(token) };
            if self.ask(exit, request).await.0 == Outcome::Done {
                return;
            }
        }
    }
}

/// The name of the client that is enrolled with a token.
pub fn name_of(token: usize) -> String {
    format!("guest-{token:06}")
}

/// Pseudo-random numbers. Each seed has its own sequence.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// A client that was enrolled, and its session.
struct Guest {
    number: usize,
    token: usize,
    key: PrivateKey,
    exit: usize,
    session: Option<(Box<LibraryClient>, Ipv4Addr)>,
}

/// One life after the other, until the world ends.
pub async fn live(world: &World, mut dice: Dice) {
    while !world.is_over.load(SeqCst) {
        let Some(mut guest) = enrolled(world, &mut dice).await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        for _ in 0..2 {
            guest.go_to(world, dice.roll(EXITS)).await;
            guest.talk(world, 6).await;
        }
        // If an exit that is cut off disables a client, that prevails over an Enable elsewhere, which the exit has not heard of.
        // So a client that was disabled may be refused in the end.
        let is_disabled = dice.roll(4) == 0;
        if is_disabled {
            guest.is_disabled_for_a_while(world, &mut dice).await;
        }
        if dice.roll(20) == 0 && !is_disabled {
            guest.leave().await;
            world.stayed.lock().unwrap().push((guest.number, guest.key));
        } else {
            guest.end(world, &mut dice).await;
        }
    }
}

/// Invites somebody. One key redeems the token at some exit, or three keys race for it, one at each exit.
async fn enrolled(world: &World, dice: &mut Dice) -> Option<Guest> {
    let token = world.invite(dice.roll(EXITS)).await?;
    // Usually, all exits know of the invitation now.
    tokio::time::sleep(Duration::from_millis(30)).await;
    let (first, rivals) = (dice.roll(EXITS), if dice.roll(3) == 0 { EXITS } else { 1 });
    let keys: Vec<(usize, PrivateKey)> = (0..rivals).map(|_| world.new_key()).collect();
    let at = |place: usize| (first + place) % EXITS;
    let attempt = |place: usize| {
        let (number, key) = keys.get(place)?;
        Some(world.enrol(token, at(place), (*number, key)))
    };
    let attempt = |place| async move {
        match attempt(place) {
            Some(attempt) => attempt.await,
            None => Outcome::Refused,
        }
    };
    let (one, two, three) = tokio::join!(attempt(0), attempt(1), attempt(2));
    let mut winner = None;
    for (place, outcome) in [one, two, three].into_iter().enumerate().take(rivals) {
        let (number, key) = &keys[place];
        match outcome {
            Outcome::Done => {
                let (number, key) = (*number, key.clone());
                winner = Some(Guest { number, token: token.0, key, exit: at(place), session: None });
            }
            // A key without the token is nobody's.
            Outcome::Refused if dice.roll(2) == 0 => drop(world.connect(at(place), (*number, key)).await),
            Outcome::Refused | Outcome::Unknown => {}
        }
    }
    if winner.is_none() {
        world.forget(token.0).await;
    }
    winner
}

impl Guest {
    /// Opens a session at another exit. The session before it ends when the new one is there.
    async fn go_to(&mut self, world: &World, exit: usize) {
        for _ in 0..5 {
            if let Some(session) = world.connect(exit, (self.number, &self.key)).await {
                self.leave().await;
                (self.session, self.exit) = (Some(session), exit);
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn leave(&mut self) {
        if let Some((session, _)) = self.session.take() {
            session.leave().await;
        }
    }

    async fn probe(&mut self, world: &World, within: Duration) {
        let sequence = world.packets.fetch_add(1, SeqCst);
        let Some((client, address)) = &mut self.session else { return };
        if client.attached() == 0 {
            // Without a connection, nothing can be sent.
            return self.wait(within).await;
        }
        let begun = Instant::now();
        let is_back = probe(client, *address, (self.number, sequence), within).await;
        let outcome = if is_back { Outcome::Done } else { Outcome::Unknown };
        world.note(What::Probe, (self.number, self.exit), begun, outcome);
    }

    async fn talk(&mut self, world: &World, packets: usize) {
        for _ in 0..packets {
            self.probe(world, ECHO).await;
            self.wait(Duration::from_millis(20)).await;
        }
    }

    /// Lets time pass.
    async fn wait(&mut self, time: Duration) {
        let begun = Instant::now();
        while let Some((client, _)) = self.session.as_mut().filter(|_| begun.elapsed() < time) {
            client.run(time.saturating_sub(begun.elapsed())).await;
        }
        tokio::time::sleep(time.saturating_sub(begun.elapsed())).await;
    }

    /// Sends one packet after the other while an operator shuts the client out, and tries to come back.
    async fn is_shut_out(&mut self, world: &World, dice: &mut Dice, what: What) -> bool {
        let exits = [dice.roll(EXITS), dice.roll(EXITS), dice.roll(EXITS), 0, 1, 2];
        let has_answer = AtomicBool::new(false);
        let other = Self { session: None, key: self.key.clone(), ..*self };
        let asking = async {
            let mut is_done = false;
            for exit in exits {
                is_done = is_done || world.change(what, &other, exit).await;
            }
            has_answer.store(true, SeqCst);
            is_done
        };
        let sending = async {
            let mut answered = None;
            while answered.is_none_or(|answered: Instant| answered.elapsed() < GOES_ON) {
                self.probe(world, PACE).await;
                self.wait(PACE).await;
                if answered.is_none() && has_answer.load(SeqCst) {
                    answered = Some(Instant::now());
                    self.try_all(world).await;
                }
            }
            self.try_all(world).await;
        };
        tokio::join!(asking, sending).0
    }

    /// Asks each exit for a session. If one admits the client, it sends packets there.
    async fn try_all(&mut self, world: &World) {
        for exit in 0..EXITS {
            if let Some(session) = world.connect(exit, (self.number, &self.key)).await {
                self.leave().await;
                (self.session, self.exit) = (Some(session), exit);
                self.probe(world, ECHO).await;
            }
        }
    }

    async fn is_disabled_for_a_while(&mut self, world: &World, dice: &mut Dice) {
        if self.is_shut_out(world, dice, What::Disable).await {
            for _ in 0..10 {
                if world.change(What::Enable, self, dice.roll(EXITS)).await {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        self.go_to(world, dice.roll(EXITS)).await;
        self.talk(world, 4).await;
    }

    /// Is removed, and leaves.
    async fn end(mut self, world: &World, dice: &mut Dice) {
        self.is_shut_out(world, dice, What::Remove).await;
        self.leave().await;
    }
}
