//! Which files of a checkpoint are copied between hosts before a generation resumes from it.
//!
//! Invariants:
//! - PLACED-1: a file that all hosts which saved it have alike is copied to the hosts that lack it. So every host
//!   gets all of a checkpoint, whatever part of it its ranks have saved.
//! - PLACED-2: files of one name that differ, saved at about the same time, are parts of a sharded checkpoint:
//!   each host keeps its own, and a host without one is named. At other times they are different checkpoints.
//! - PLACED-3: an earlier copy by rankdeck is not an original: it is replaced when it differs. Where no original is
//!   left, the newest copy is one.
//! - PLACED-4: of a save that is known, originals are the files of the host that reported it or where it was found,
//!   and those that other hosts wrote in the same generation. Another file under the same path is set aside.
//! - PLACED-5: where files of one kind are there for every rank of the generation (`zero_pp_rank_3_...`), each host
//!   gets those of its ranks only.

use rankdeck_proto::message::{CheckpointContent, PartFile};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, WallTime};
use rankdeck_types::words::{bytes, duration};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Parts of a checkpoint are saved within this many seconds of each other.
const PARTS_S: f64 = 900.0;
/// A file written within this many seconds of a report is the reported one, on a shared disk.
const REPORT_S: f64 = 30.0;

/// A file to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileCopy {
    /// Name below the checkpoint.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    pub from: NodeRank,
    pub to: Vec<NodeRank>,
}

/// What follows from what hosts have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PlacementStep {
    /// The hashes of these hosts' files decide.
    Hash(BTreeSet<NodeRank>),
    /// Every host has what it needs after these copies.
    Copy {
        copies: Vec<FileCopy>,
        /// Hosts that keep their own part of a sharded checkpoint.
        parts: BTreeSet<NodeRank>,
    },
    /// What these hosts have under the path is of another save, the latest of this generation; it is moved away first.
    SetAside(BTreeMap<NodeRank, Generation>),
    /// No host has it. Another checkpoint may exist.
    Missing(HintedError),
    Refused(HintedError),
}

/// A save in the present line of training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct KnownSave {
    /// The host whose rank reported it, or where it was found.
    pub node: NodeRank,
    /// The generation that wrote it.
    pub generation: Generation,
    /// When it was complete; 0: unknown.
    pub at: WallTime,
}

/// What is known of the hosts.
pub(crate) struct PlacementFacts<'a> {
    /// The checkpoint's path, for people.
    pub path: &'a str,
    /// Hosts whose ranks resume.
    pub members: &'a [NodeRank],
    /// The host of each rank that resumes.
    pub ranks: &'a [NodeRank],
    /// What every host that was asked has, with times by the console's clock.
    pub contents: &'a BTreeMap<NodeRank, CheckpointContent>,
    /// The save that is meant; `None`: only its path is known.
    pub save: Option<KnownSave>,
    /// The latest generation of a host.
    pub latest: &'a dyn Fn(NodeRank) -> Option<Generation>,
    pub names: &'a dyn Fn(NodeRank) -> String,
}

impl PlacementFacts<'_> {
    /// Decides what to do next.
    pub(crate) fn decide(&self) -> PlacementStep {
        let valid = self.of_save();
        let found = valid.values().flat_map(|content| content.files.iter().map(|file| file.name.as_str()));
        let files: BTreeSet<&str> = found.collect();
        let index: BTreeMap<NodeRank, FilesByName<'_>> =
            self.contents.iter().map(|(node, content)| (*node, by_name(content))).collect();
        let shards = rank_files(&files, self.ranks.len());
        // Where every original of the checkpoint is gone, a copy is one.
        let has_originals = valid.values().any(|content| content.files.iter().any(|file| !file.copied));
        if files.is_empty() {
            return PlacementStep::Missing(self.missing());
        }
        if files.contains("") && files.len() > 1 {
            let error = format!("checkpoint {} is a file on one host and a directory on another", self.path);
            return PlacementStep::Refused(HintedError::new(error, "remove the wrong one"));
        }
        let (mut hash, mut copies, mut parts) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        for file in files {
            let owner = shards.get(file).and_then(|rank| self.ranks.get(*rank)).copied();
            let targets: Vec<NodeRank> = match owner {
                Some(owner) => self.members.iter().copied().filter(|node| *node == owner).collect(),
                None => self.members.to_vec(),
            };
            let all = valid.keys().filter_map(|node| Some((*node, *index.get(node)?.get(file)?))).collect();
            let of = |node: &NodeRank| index.get(node)?.get(file).copied();
            match self.of_file(file, all, (&targets, has_originals), &of) {
                Ok(FileStep::Hash(nodes)) => hash.extend(nodes),
                Ok(FileStep::Copy(copy)) => copies.extend(copy),
                Ok(FileStep::Parts(nodes)) => parts.extend(nodes),
                Err(refused) => return PlacementStep::Refused(refused),
            }
        }
        let mut aside = BTreeMap::new();
        for node in self.members.iter().filter(|node| !valid.contains_key(*node)) {
            match self.of_other_save(*node, &valid, &index) {
                OtherSave::Same => {}
                OtherSave::Unknown(nodes) => hash.extend(nodes),
                OtherSave::Differs(generation) => {
                    aside.insert(*node, generation);
                }
            }
        }
        if !hash.is_empty() {
            return PlacementStep::Hash(hash);
        }
        if !aside.is_empty() {
            return PlacementStep::SetAside(aside);
        }
        match self.lacks_space(&copies) {
            Some(refused) => PlacementStep::Refused(refused),
            None => PlacementStep::Copy { copies, parts },
        }
    }

    /// PLACED-4. Hosts with files of the save.
    fn of_save(&self) -> BTreeMap<NodeRank, &CheckpointContent> {
        let has_files = self.contents.iter().filter(|(_, content)| !content.files.is_empty());
        let all: BTreeMap<NodeRank, &CheckpointContent> =
            has_files.map(|(node, content)| (*node, content)).collect();
        let Some(save) = self.save else { return all };
        let has_owner = all.contains_key(&save.node);
        let is_of_save = |node: NodeRank, file: &PartFile| match file.generation {
            Some(generation) if generation == save.generation => true,
            // Hosts that share the disk may not have been part of that generation.
            _ if !has_owner && save.at > 0.0 && (file.modified - save.at).abs() <= REPORT_S => true,
            Some(_) => false,
            None => {
                let took_part = (self.latest)(node).is_some_and(|latest| latest >= save.generation);
                let is_dated = file.modified > 0.0 && save.at > 0.0;
                took_part && !(is_dated && file.modified + PARTS_S < save.at)
            }
        };
        let is_valid = |node: NodeRank, content: &CheckpointContent| {
            node == save.node || content.files.iter().any(|file| is_of_save(node, file))
        };
        all.into_iter().filter(|&(node, content)| is_valid(node, content)).collect()
    }

    fn missing(&self) -> HintedError {
        let others = self.contents.iter().filter(|(_, content)| !content.files.is_empty());
        let others: Vec<String> = others.map(|(node, _)| (self.names)(*node)).collect();
        let error = match (others.is_empty(), self.save) {
            (false, Some(save)) => format!(
                "checkpoint {} of {} not found; {} has another file under this path",
                self.path,
                (self.names)(save.node),
                others.join(", ")
            ),
            (_, _) => format!("checkpoint {} not found on any host", self.path),
        };
        HintedError::new(error, "choose another one with `--from`, or `--from scratch`")
    }

    /// What a host has that is not of the save, against it. Copies are replaced where they are (PLACED-3).
    fn of_other_save(
        &self,
        node: NodeRank,
        valid: &BTreeMap<NodeRank, &CheckpointContent>,
        index: &BTreeMap<NodeRank, FilesByName<'_>>,
    ) -> OtherSave {
        let own = self.contents.get(&node).map_or(&[][..], |content| content.files.as_slice());
        let mut unknown = BTreeSet::new();
        for file in own.iter().filter(|file| !file.copied) {
            let original = valid.keys().find_map(|owner| {
                let found = index.get(owner)?.get(file.name.as_str())?;
                Some((*owner, equal(found, file)))
            });
            match original {
                Some((_, Some(true))) => {}
                Some((owner, None)) => unknown.extend([owner, node]),
                Some((_, Some(false))) | None => {
                    let generation = own.iter().filter_map(|file| file.generation).max();
                    return OtherSave::Differs(generation.or((self.latest)(node)).unwrap_or_default());
                }
            }
        }
        if unknown.is_empty() { OtherSave::Same } else { OtherSave::Unknown(unknown) }
    }

    /// `all`: the file on hosts with the save. `targets`: the members that need it. `of`: what any host has of it.
    fn of_file<'b>(
        &self,
        file: &str,
        all: Vec<(NodeRank, &'b PartFile)>,
        (targets, has_originals): (&[NodeRank], bool),
        of: &dyn Fn(&NodeRank) -> Option<&'b PartFile>,
    ) -> Result<FileStep, HintedError> {
        // PLACED-3.
        let originals: Vec<(NodeRank, &PartFile)> = match has_originals {
            true => all.into_iter().filter(|(_, found)| !found.copied).collect(),
            false => {
                let newest = all.into_iter().rev().max_by(|a, b| a.1.modified.total_cmp(&b.1.modified));
                newest.into_iter().collect()
            }
        };
        let Some((_, first)) = originals.first().copied() else { return Ok(FileStep::Copy(None)) };
        let unknown = |(_, found): &&(NodeRank, &PartFile)| equal(first, found).is_none();
        let open: Vec<NodeRank> = originals.iter().filter(unknown).map(|(node, _)| *node).collect();
        let asked: Vec<NodeRank> = originals.iter().map(|(node, _)| *node).collect();
        if !open.is_empty() {
            return Ok(FileStep::Hash(asked));
        }
        if originals.iter().any(|(_, found)| equal(first, found) == Some(false)) {
            return self.parts(file, &originals).map(FileStep::Parts);
        }
        let lacks = |node: &&NodeRank| of(node).is_none_or(|own| equal(first, own) != Some(true));
        let lacking: Vec<NodeRank> = targets.iter().filter(lacks).copied().collect();
        let Some((from, source)) = originals.first().copied().filter(|_| !lacking.is_empty()) else {
            return Ok(FileStep::Copy(None));
        };
        let unsure = lacking.iter().filter(|node| of(node).is_some_and(|own| equal(source, own).is_none()));
        let unsure: Vec<NodeRank> = unsure.copied().collect();
        let Some(sha256) = source.sha256.clone().filter(|_| unsure.is_empty()) else {
            return Ok(FileStep::Hash(unsure.into_iter().chain([from]).collect()));
        };
        let copy = FileCopy { file: file.to_owned(), bytes: source.bytes, sha256, from, to: lacking };
        Ok(FileStep::Copy(Some(copy)))
    }

    /// PLACED-2.
    fn parts(&self, file: &str, originals: &[(NodeRank, &PartFile)]) -> Result<Vec<NodeRank>, HintedError> {
        let path = if file.is_empty() { self.path.to_owned() } else { format!("{}/{file}", self.path) };
        let newest = originals.iter().max_by(|a, b| a.1.modified.total_cmp(&b.1.modified));
        let oldest = originals.iter().min_by(|a, b| a.1.modified.total_cmp(&b.1.modified));
        if let (Some((_, new)), Some((node, old))) = (newest, oldest)
            && new.modified - old.modified > PARTS_S
        {
            let (name, age) = ((self.names)(*node), duration(new.modified - old.modified));
            let error = format!("{name} has another file as {path}, {age} older");
            return Err(HintedError::new(
                error,
                format!("remove it on {name}: the right one is then copied there"),
            ));
        }
        let has = |node: &&NodeRank| originals.iter().any(|(owner, _)| owner == *node);
        if let Some(node) = self.members.iter().find(|node| !has(node)) {
            let (name, owners) =
                ((self.names)(*node), originals.iter().map(|(owner, _)| (self.names)(*owner)));
            let owners = owners.collect::<Vec<_>>().join(", ");
            return Err(HintedError::new(
                format!("no part of checkpoint {path} on {name}, and the parts on {owners} differ"),
                "restart on the hosts that have saved it, or `--from scratch`",
            ));
        }
        Ok(originals.iter().map(|(node, _)| *node).filter(|node| self.members.contains(node)).collect())
    }

    fn lacks_space(&self, copies: &[FileCopy]) -> Option<HintedError> {
        self.members.iter().find_map(|node| {
            let needed: u64 =
                copies.iter().filter(|copy| copy.to.contains(node)).map(|copy| copy.bytes).sum();
            let free = self.contents.get(node).map_or(0, |content| content.free);
            (needed > free).then(|| {
                let (name, needed, free) = ((self.names)(*node), bytes(needed), bytes(free));
                let error =
                    format!("{name} lacks space for checkpoint {}: {needed} needed, {free} free", self.path);
                HintedError::new(error, format!("free disk space on {name}"))
            })
        })
    }
}

/// Files of a host by their names below the checkpoint.
type FilesByName<'a> = BTreeMap<&'a str, &'a PartFile>;

fn by_name(content: &CheckpointContent) -> FilesByName<'_> {
    content.files.iter().map(|file| (file.name.as_str(), file)).collect()
}

/// The rank in the name of a file, and the rest of the name: `zero_pp_rank_3_mp_rank_00_optim_states.pt` is of rank 3.
/// `None`: it names none, or it is one of a model-parallel group.
fn rank_of(name: &str) -> Option<(String, usize)> {
    const WORD: &str = "rank";
    let mut found = None;
    for (at, _) in name.match_indices(WORD) {
        let from = at + WORD.len();
        let digits_at = from + usize::from(name[from..].starts_with(['_', '-', '=']));
        let length = name[digits_at..].bytes().take_while(u8::is_ascii_digit).count();
        let Ok(rank) = name[digits_at..digits_at + length].parse::<usize>() else { continue };
        match (name[..at].ends_with("mp_"), found.is_some()) {
            // Of data-parallel ranks with one part of the model each, nothing but 0.
            (true, _) if rank == 0 => {}
            (true, _) | (false, true) => return None,
            (false, false) => {
                found = Some((format!("{}#{}", &name[..at], &name[digits_at + length..]), rank))
            }
        }
    }
    found
}

/// PLACED-5. The files of which each rank needs its own, and their ranks: those of a kind that has one for each of so
/// many ranks. With another number of ranks, every rank may need all of them.
fn rank_files<'a>(files: &BTreeSet<&'a str>, ranks: usize) -> BTreeMap<&'a str, usize> {
    let mut kinds: BTreeMap<String, BTreeMap<usize, &'a str>> = BTreeMap::new();
    let mut doubled = BTreeSet::new();
    for &file in files {
        if let Some((kind, rank)) = rank_of(file)
            && kinds.entry(kind.clone()).or_default().insert(rank, file).is_some()
        {
            doubled.insert(kind);
        }
    }
    let is_whole = |(kind, files): &(String, BTreeMap<usize, &'a str>)| {
        ranks > 1 && files.len() == ranks && !doubled.contains(kind) && files.keys().copied().eq(0..ranks)
    };
    let whole = kinds.into_iter().filter(is_whole);
    whole.flat_map(|(_, files)| files.into_iter().map(|(rank, file)| (file, rank))).collect()
}

/// Files of a host that are not of the save.
enum OtherSave {
    /// The save has the same, or there are none.
    Same,
    /// The hashes of these hosts' files decide.
    Unknown(BTreeSet<NodeRank>),
    /// They are the latest of this generation.
    Differs(Generation),
}

enum FileStep {
    Hash(Vec<NodeRank>),
    Copy(Option<FileCopy>),
    Parts(Vec<NodeRank>),
}

/// Whether two hosts have the same content; `None`: their hashes decide.
fn equal(a: &PartFile, b: &PartFile) -> Option<bool> {
    if a.bytes != b.bytes {
        return Some(false);
    }
    match (&a.sha256, &b.sha256) {
        _ if a.identity == b.identity => Some(true),
        (Some(a), Some(b)) => Some(a == b),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: &str, identity: &str) -> PartFile {
        let (name, identity) = (name.to_owned(), identity.to_owned());
        PartFile {
            name,
            identity,
            bytes: content.len() as u64,
            sha256: Some(content.into()),
            ..PartFile::default()
        }
    }

    fn facts(
        contents: &[Vec<PartFile>],
        change: impl Fn(&mut BTreeMap<NodeRank, CheckpointContent>),
    ) -> PlacementStep {
        let content = |(node, files): (usize, &Vec<PartFile>)| {
            let content =
                CheckpointContent { files: files.clone(), free: 100, ..CheckpointContent::default() };
            (NodeRank(node as u32), content)
        };
        let mut contents: BTreeMap<NodeRank, CheckpointContent> =
            contents.iter().enumerate().map(content).collect();
        change(&mut contents);
        let members: Vec<NodeRank> = contents.keys().copied().collect();
        decide(&contents, &members, None)
    }

    /// Host 0 is in generation 0, all others in generation 1.
    fn decide(
        contents: &BTreeMap<NodeRank, CheckpointContent>,
        members: &[NodeRank],
        save: Option<KnownSave>,
    ) -> PlacementStep {
        let names = |node: NodeRank| format!("host{node}");
        let latest = |node: NodeRank| Some(Generation(node.0.min(1)));
        let facts = PlacementFacts {
            path: "/a/ck",
            members,
            ranks: members,
            contents,
            save,
            latest: &latest,
            names: &names,
        };
        facts.decide()
    }

    /// `files` by host; host 1 has saved the checkpoint in generation 1.
    fn of_host_1(files: &[Vec<PartFile>]) -> PlacementStep {
        let content = |(node, files): (usize, &Vec<PartFile>)| {
            let content =
                CheckpointContent { files: files.clone(), free: 100, ..CheckpointContent::default() };
            (NodeRank(node as u32), content)
        };
        let contents: BTreeMap<NodeRank, CheckpointContent> = files.iter().enumerate().map(content).collect();
        let members: Vec<NodeRank> = contents.keys().copied().collect();
        let save = KnownSave { node: NodeRank(1), generation: Generation(1), at: 1000.0 };
        decide(&contents, &members, Some(save))
    }

    #[test]
    fn placed_4_file_of_an_earlier_generation_is_set_aside() {
        let of = |generation: Option<u32>, content: &str| PartFile {
            generation: generation.map(Generation),
            modified: 1000.0,
            ..file("", content, content)
        };
        let aside = |node: u32| PlacementStep::SetAside([(NodeRank(node), Generation(0))].into());
        // It was written at the same time, by ranks that nothing had stopped.
        assert_eq!(of_host_1(&[vec![of(Some(0), "old")], vec![of(Some(1), "new")]]), aside(0));
        assert_eq!(of_host_1(&[vec![of(None, "old")], vec![of(None, "new")]]), aside(0), "an older agent");
        let step = of_host_1(&[vec![], vec![of(Some(1), "new")], vec![of(Some(0), "old")]]);
        assert_eq!(step, aside(2), "its ranks went on from a copy elsewhere");
        // The same content, and a directory with a file that the save does not have.
        assert!(copies(of_host_1(&[vec![of(Some(0), "new")], vec![of(Some(1), "new")]])).is_empty());
        let more =
            vec![file("a", "1", "1"), PartFile { generation: Some(Generation(0)), ..file("b", "2", "2") }];
        assert_eq!(of_host_1(&[more, vec![file("a", "1", "1")]]), aside(0));
        let plain = |content: &str, generation| PartFile { sha256: None, ..of(Some(generation), content) };
        let step = of_host_1(&[vec![plain("old", 0)], vec![plain("new", 1)]]);
        assert_eq!(step, PlacementStep::Hash([NodeRank(0), NodeRank(1)].into()));
    }

    #[test]
    fn placed_4_parts_are_of_one_generation() {
        let of = |generation: u32, content: &str| PartFile {
            generation: Some(Generation(generation)),
            ..file("", content, content)
        };
        let step = of_host_1(&[vec![of(1, "abc")], vec![of(1, "xyz")]]);
        assert_eq!(step, PlacementStep::Copy { copies: vec![], parts: [NodeRank(0), NodeRank(1)].into() });
        // One host without its part.
        assert!(matches!(
            of_host_1(&[vec![of(0, "old")], vec![of(1, "abc")], vec![of(1, "xyz")]]),
            PlacementStep::Refused(_)
        ));
    }

    #[test]
    fn placed_4_other_files_do_not_stand_in_for_a_lost_save() {
        let old = || PartFile { generation: Some(Generation(0)), modified: 10.0, ..file("", "old", "1") };
        assert!(matches!(of_host_1(&[vec![old()], vec![]]), PlacementStep::Missing(_)));
        let copied = PartFile { copied: true, ..old() };
        assert!(matches!(of_host_1(&[vec![copied], vec![]]), PlacementStep::Missing(_)), "an older copy");
        // The disk is shared with the host that has saved it.
        let shared = PartFile { modified: 999.0, ..old() };
        assert_eq!(copies(of_host_1(&[vec![shared], vec![]])), [(String::new(), 0, vec![1])]);
    }

    fn as_is(_: &mut BTreeMap<NodeRank, CheckpointContent>) {}

    /// File, source and targets of all copies.
    fn copies(step: PlacementStep) -> Vec<(String, u32, Vec<u32>)> {
        let PlacementStep::Copy { copies, parts } = step else { panic!("{step:?}") };
        assert!(parts.is_empty(), "{parts:?}");
        let of = |copy: FileCopy| (copy.file, copy.from.0, copy.to.iter().map(|node| node.0).collect());
        copies.into_iter().map(of).collect()
    }

    fn refused(step: PlacementStep) -> String {
        let PlacementStep::Refused(error) = step else { panic!("{step:?}") };
        error.error
    }

    #[test]
    fn placed_1_missing_files_are_copied_to_every_host() {
        let one = || file("", "abc", "1");
        assert_eq!(copies(facts(&[vec![one()], vec![]], as_is)), [(String::new(), 0, vec![1])]);
        assert_eq!(copies(facts(&[vec![], vec![one()], vec![]], as_is)), [(String::new(), 1, vec![0, 2])]);
        assert!(copies(facts(&[vec![one()], vec![one()]], as_is)).is_empty(), "one disk");
        assert!(copies(facts(&[vec![one()], vec![file("", "abc", "2")]], as_is)).is_empty(), "equal hashes");
        // Of a directory, each host has saved another part.
        let (meta, a, b) = (file(".metadata", "m", "1"), file("__0_0", "aa", "2"), file("__1_0", "bb", "3"));
        let step = facts(&[vec![meta, a], vec![b]], as_is);
        let all = [
            (".metadata".to_owned(), 0, vec![1]),
            ("__0_0".to_owned(), 0, vec![1]),
            ("__1_0".to_owned(), 1, vec![0]),
        ];
        assert_eq!(copies(step), all);
        let PlacementStep::Missing(missing) = facts(&[vec![], vec![]], as_is) else { panic!() };
        assert!(missing.error.contains("/a/ck"));
        let mixed = facts(&[vec![one()], vec![file("x", "x", "9")]], as_is);
        assert!(matches!(mixed, PlacementStep::Refused(_)));
    }

    #[test]
    fn placed_1_hashes_are_computed_only_where_they_decide() {
        let plain = |content: &str, identity: &str| PartFile { sha256: None, ..file("", content, identity) };
        let hash = |nodes: &[u32]| PlacementStep::Hash(nodes.iter().map(|node| NodeRank(*node)).collect());
        assert_eq!(facts(&[vec![plain("abc", "1")], vec![plain("xyz", "2")]], as_is), hash(&[0, 1]));
        assert_eq!(facts(&[vec![plain("abc", "1")], vec![]], as_is), hash(&[0]), "the copy is verified");
        assert!(copies(facts(&[vec![plain("abc", "1")], vec![plain("abc", "1")]], as_is)).is_empty());
    }

    #[test]
    fn placed_2_differing_files_of_one_time_are_parts() {
        let own = |content: &str, modified: f64| PartFile { modified, ..file("", content, content) };
        let step = facts(&[vec![own("abc", 1000.0)], vec![own("xyz", 1010.0)]], as_is);
        let parts = [NodeRank(0), NodeRank(1)].into();
        assert_eq!(step, PlacementStep::Copy { copies: vec![], parts });
        let lacking = facts(&[vec![own("abc", 1000.0)], vec![own("xyz", 1010.0)], vec![]], as_is);
        assert!(refused(lacking).contains("host2"));
        let older = facts(&[vec![own("abc", 9000.0)], vec![own("xyz", 1010.0)]], as_is);
        assert!(refused(older).contains("host1"));
    }

    #[test]
    fn placed_3_stale_copy_is_replaced() {
        let copied = |content: &str| PartFile { copied: true, ..file("", content, content) };
        let step = facts(&[vec![file("", "new", "1")], vec![copied("old")]], as_is);
        assert_eq!(copies(step), [(String::new(), 0, vec![1])]);
        assert!(copies(facts(&[vec![file("", "new", "1")], vec![copied("new")]], as_is)).is_empty());
        // A file of a directory that the original no longer has.
        let old = PartFile { copied: true, ..file("old", "o", "7") };
        let step = facts(&[vec![file("new", "n", "1")], vec![old]], as_is);
        assert_eq!(copies(step), [("new".to_owned(), 0, vec![1])]);
        // The host that saved it is gone.
        assert_eq!(copies(facts(&[vec![], vec![copied("old")]], as_is)), [(String::new(), 1, vec![0])]);
    }

    #[test]
    fn placed_3_newest_copy_stands_in_for_lost_originals() {
        let copied =
            |content: &str, modified: f64| PartFile { copied: true, modified, ..file("", content, content) };
        let step = facts(&[vec![copied("old", 1000.0)], vec![copied("new", 1100.0)], vec![]], as_is);
        assert_eq!(copies(step), [(String::new(), 1, vec![0, 2])], "of two runs, within minutes");
    }

    #[test]
    fn placed_5_each_host_gets_the_files_of_its_ranks() {
        let own = |rank: u32| {
            let name = format!("zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
            file(&name, "abc", &format!("own{rank}"))
        };
        let model = || file("mp_rank_00_model_states.pt", "m", "m");
        let step = facts(&[vec![own(0), model()], vec![own(1)]], as_is);
        assert_eq!(copies(step), [("mp_rank_00_model_states.pt".to_owned(), 0, vec![1])]);
        // The ranks have moved.
        let step = facts(&[vec![own(0), own(1), model()], vec![]], as_is);
        let names: Vec<(String, Vec<u32>)> =
            copies(step).into_iter().map(|(name, _, to)| (name, to)).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names.iter().all(|(name, to)| !name.contains("pp_rank_0") && *to == [1]), "{names:?}");
        // Another number of ranks.
        let step = facts(&[vec![own(0), own(1), own(2), model()], vec![]], as_is);
        assert_eq!(copies(step).len(), 4);
        let step =
            facts(&[vec![file("__0_0.distcp", "a", "1"), file("__1_0.distcp", "b", "2")], vec![]], as_is);
        assert_eq!(copies(step).len(), 2, "replicated tensors may be in any of them");
        for (name, rank) in [
            ("optimizer_rank3.pt", Some(3)),
            ("rank-2/model.bin", Some(2)),
            ("zero_pp_rank_1_mp_rank_01_optim_states.pt", None),
            ("ranking.pt", None),
        ] {
            assert_eq!(rank_of(name).map(|(_, rank)| rank), rank, "{name}");
        }
    }

    #[test]
    fn full_disk_is_named_before_anything_is_copied() {
        let full = |contents: &mut BTreeMap<NodeRank, CheckpointContent>| {
            contents.get_mut(&NodeRank(1)).unwrap().free = 2;
        };
        assert!(refused(facts(&[vec![file("", "abc", "1")], vec![]], full)).contains("host1"));
    }
}
