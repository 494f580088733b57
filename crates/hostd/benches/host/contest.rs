//! The contenders to compare, under which load.

use crate::image::{Image, Place};
use crate::load::Sample;
use crate::report::{Row, Samples, Target};
use crate::server::{Program, Protocol, Server};
use crate::{Options, fio};
use seekway_client::{Client, Load, Result};

/// Guest memory for the client's data: 64 reads of 128 KiB.
const MEMORY_BYTES: usize = 8 << 20;

/// Contenders under one load on one image.
pub struct Contest {
    part: &'static str,
    protocol: Protocol,
    load: Load,
    contenders: Vec<Contender>,
    matches: Vec<Match>,
}

enum Contender {
    Server(Program),
    /// No server: fio reads the image by io_uring.
    Raw,
}

impl Contender {
    fn name(&self) -> String {
        match self {
            Contender::Server(program) => program.name(),
            Contender::Raw => "fio io_uring".to_owned(),
        }
    }
}

fn servers<const N: usize>(programs: [Program; N]) -> Vec<Contender> {
    programs.map(Contender::Server).into()
}

/// Two contenders side by side in a row, by their places among them.
struct Match {
    ours: usize,
    peer: usize,
    target: Target,
    p99_target: Target,
}

/// All contests on one image, in the order of the table.
pub fn all(options: &Options, place: Place) -> Vec<Contest> {
    let mut contests = Vec::new();
    if options.wants("vhost") {
        let loads = [
            Load::random(1),
            Load::random(16),
            Load::random(64),
            Load::sequential(16),
            Load::sequential(32),
        ];
        contests.extend(loads.map(|load| vhost(options, load)));
    }
    if options.wants("nbd") {
        contests.extend([Load::random(1), Load::random(16)].map(|load| nbd(options, place, load)));
    }
    if options.wants("poll") && place == Place::Memory && !options.peers_alone {
        contests.extend([1, 4, 16].map(|depth| polls(options, Load::random(depth))));
    }
    if options.wants("threads") && place == Place::Memory && !options.peers_alone {
        contests.extend([1, 16, 64].map(|depth| threads(options, Load::random(depth))));
    }
    if options.wants("raw") && place == Place::Memory && !options.peers_alone {
        contests.extend([(16, 0.75), (64, 0.8)].map(|(depth, least)| raw(options, depth, least)));
    }
    if options.wants("policies") && !options.peers_alone {
        // In memory a policy's own time is a larger part of a read's.
        let depths: &[u16] = if place == Place::Memory { &[16, 64] } else { &[64] };
        contests.extend(depths.iter().map(|&depth| policies(Load::random(depth))));
    }
    contests.retain(|contest| contest.name(place).contains(&options.filter));
    contests
}

fn ours(options: &Options) -> Program {
    Program::Seekway { policy: options.policy.clone(), args: &[] }
}

fn vhost(options: &Options, load: Load) -> Contest {
    if let Some(path) = &options.before {
        let (path, policy) = (path.clone(), options.policy.clone());
        return Contest {
            part: "vhost",
            protocol: Protocol::Vhost,
            load,
            contenders: servers([ours(options), Program::Before { path, policy }]),
            matches: vec![Match {
                ours: 0,
                peer: 1,
                target: Target::RatioAtLeast(0.97, None),
                p99_target: Target::None,
            }],
        };
    }
    let peer = Program::StorageDaemon;
    let first = if options.peers_alone { peer.clone() } else { ours(options) };
    Contest {
        part: "vhost",
        protocol: Protocol::Vhost,
        load,
        contenders: servers([first, peer]),
        matches: vec![Match {
            ours: 0,
            peer: 1,
            target: Target::RatioAtLeast(1.0, Some(1.3)),
            p99_target: Target::RatioAtMost(1.0),
        }],
    }
}

fn nbd(options: &Options, place: Place, load: Load) -> Contest {
    let target = match place {
        Place::Disk => Target::RatioAtLeast(1.2, None),
        Place::Memory => Target::RatioAtLeast(1.0, None),
    };
    let (peer, other) = (Program::Nbdkit, Program::StorageDaemon);
    let first = if options.peers_alone { peer.clone() } else { ours(options) };
    let against = |peer, target| Match { ours: 0, peer, target, p99_target: Target::None };
    Contest {
        part: "nbd",
        protocol: Protocol::Nbd,
        load,
        contenders: servers([first, peer, other]),
        matches: vec![against(1, target), against(2, Target::None)],
    }
}

/// NBD with `--poll auto`, the default, and without.
fn polls(options: &Options, load: Load) -> Contest {
    let policy = options.policy.clone();
    let polls = Program::Seekway { policy: policy.clone(), args: &["--poll", "auto"] };
    let sleeps = Program::Seekway { policy, args: &["--poll", "0"] };
    let against = |peer, target| Match { ours: 0, peer, target, p99_target: Target::None };
    Contest {
        part: "poll",
        protocol: Protocol::Nbd,
        load,
        contenders: servers([polls, sleeps, Program::Nbdkit]),
        matches: vec![
            against(1, Target::RatioAtLeast(0.97, None)),
            against(2, Target::RatioAtLeast(1.0, None)),
        ],
    }
}

/// vhost-user with `--threads 2`.
fn threads(options: &Options, load: Load) -> Contest {
    let policy = options.policy.clone();
    let two = Program::Seekway { policy, args: &["--threads", "2"] };
    let target = match load.depth {
        // A wake-up is the most of it.
        1 => Target::RatioAtLeast(0.97, None),
        _ => Target::RatioAtLeast(1.2, None),
    };
    Contest {
        part: "threads",
        protocol: Protocol::Vhost,
        load,
        contenders: servers([two, ours(options)]),
        matches: vec![Match { ours: 0, peer: 1, target, p99_target: Target::RatioAtMost(1.0) }],
    }
}

/// vhost-user beside one process that reads the image itself.
fn raw(options: &Options, depth: u16, least: f64) -> Contest {
    let policy = options.policy.clone();
    let two = Program::Seekway { policy, args: &["--threads", "2"] };
    let target = Target::RatioAtLeast(least, None);
    let against = |ours| Match { ours, peer: 2, target, p99_target: Target::None };
    let mut contenders = servers([two, ours(options)]);
    contenders.push(Contender::Raw);
    Contest {
        part: "raw",
        protocol: Protocol::Vhost,
        load: Load::random(depth),
        contenders,
        matches: vec![against(0), against(1)],
    }
}

fn policies(load: Load) -> Contest {
    let policy = |name: &str| Program::Seekway { policy: name.to_owned(), args: &[] };
    Contest {
        part: "policies",
        protocol: Protocol::Vhost,
        load,
        contenders: servers(["noop", "fairway", "cfq", "pregather", "deadline"].map(policy)),
        matches: (1..5)
            .map(|ours| Match {
                ours,
                peer: 0,
                // The default costs next to nothing where one VM is alone.
                target: Target::RatioAtLeast(if ours == 1 { 0.95 } else { 0.9 }, None),
                p99_target: if ours == 1 { Target::RatioAtMost(1.0) } else { Target::None },
            })
            .collect(),
    }
}

/// Measures every contender once a round, every other round in reverse. The samples of each.
pub fn in_turn<C>(
    options: &Options,
    what: &str,
    contenders: &[C],
    measure: impl Fn(&C) -> Result<Sample>,
) -> Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::new(); contenders.len()];
    for round in 0..options.rounds {
        eprintln!("{what}, round {} of {}", round + 1, options.rounds);
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for n in order {
            options.go_on()?;
            samples[n].push(measure(&contenders[n])?);
        }
    }
    Ok(samples)
}

impl Contest {
    fn name(&self, place: Place) -> String {
        format!("{} {}", place.name(), self.load.name())
    }

    /// The rows of all contenders.
    pub fn run(&self, options: &Options, image: &Image) -> Result<Vec<Row>> {
        let what = self.name(image.place());
        let whole = format!("{} {what}", self.part);
        let measure = |who: &Contender| self.measure(options, image, who);
        let samples = in_turn(options, &whole, &self.contenders, measure)?;
        let several = self.matches.iter().any(|side| side.ours != self.matches[0].ours);
        let names: Vec<String> = self.contenders.iter().map(Contender::name).collect();
        Ok(self
            .matches
            .iter()
            .flat_map(|side| {
                let who = |n: usize| (names[n].as_str(), samples[n].as_slice());
                let name =
                    if several { format!("{} {what}", names[side.ours]) } else { what.clone() };
                Samples {
                    part: self.part,
                    name,
                    bytes: self.load.sequential,
                    ours: who(side.ours),
                    peer: who(side.peer),
                    target: side.target,
                    p99_target: side.p99_target,
                }
                .rows()
            })
            .collect())
    }

    /// Start one, load it, end it.
    fn measure(&self, options: &Options, image: &Image, contender: &Contender) -> Result<Sample> {
        image.drop_cache();
        let Contender::Server(program) = contender else {
            return fio::raw(image.path(), self.load, options.span);
        };
        let server = Server::start(program, self.protocol, image.path(), &options.seekway)?;
        let sample = match self.protocol {
            Protocol::Nbd => fio::nbd(server.socket(), self.load, options.span, || server.cpu()),
            Protocol::Vhost => self.by_vhost(options, &server),
        };
        sample.map_err(|error| server.complaint(&error))
    }

    fn by_vhost(&self, options: &Options, server: &Server) -> Result<Sample> {
        let mut client = Client::connect(server.socket(), MEMORY_BYTES)?;
        server.load(&mut client, self.load, options.span, options.wait)
    }
}
