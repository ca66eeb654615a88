//! Claims: how a node gets a run of windows, keeps it, and gives it back.
//!
//! A claim is a lease. One that joins the process's own neighbouring windows, or a newer process's one on the very
//! windows of an older process, replaces what it covers: at once where that isn't ready, else when it is ready itself,
//! so that a window is served while its next holder still fetches. A process that a newer one took over from gets no
//! claim any more, and is refused for good once what it served is replaced.

use kvasir_plan::Link;
use kvasir_wire::trust::{PublicKey, verify_holder};

use super::{
    Claimant, Millis, RingState, RuleError,
    ring::{Ending, Lease, Progress},
};
use crate::types::{Claim, ClaimRequest, Run, StageReport, StageState};

/// Claims that a node without failures may have that aren't ready yet.
const UNREADY_CLAIMS: u32 = 4;
/// Windows that aren't ready yet that a node may have after one failure, and after more.
const UNREADY_WINDOWS: [u32; 2] = [2, 1];

/// An instance is a UUID or a pod's name.
const MAX_INSTANCE: usize = 253;
const MAX_NETWORK: usize = 253;
/// Texts for people are cut at this length.
const MAX_TEXT: usize = 512;

impl RingState {
    /// Claims a run of windows for a process of a node that has proved its key.
    ///
    /// - Windows next to those that this process holds extend its claim; the answer's windows are all of them.
    /// - Windows that an older process of the node holds are taken over, if all of that process's claim is asked for.
    /// - What the process holds already is answered with the claim that holds it: a call may be repeated.
    ///
    /// # Errors
    /// [`RuleError::Taken`] with what is open, [`RuleError::Fenced`], [`RuleError::Paused`], [`RuleError::Quota`],
    /// [`RuleError::TooLarge`], [`RuleError::UnknownWindows`], [`RuleError::TooLong`] or [`RuleError::Withdrawn`].
    pub fn claim(
        &mut self,
        now: Millis,
        relays: &[String],
        by: &Claimant,
        request: &ClaimRequest,
    ) -> Result<Claim, RuleError> {
        self.on_market()?;
        self.settle(now, relays);
        let (node, instance, asked) = (by.node, request.instance.as_str(), request.windows);
        text("the instance", instance, MAX_INSTANCE)?;
        if asked.is_empty() || asked.end > self.count() {
            let count = self.count();
            return Err(RuleError::UnknownWindows { windows: asked, count });
        }
        let own = |lease: &Lease| lease.node == node && lease.instance == instance;
        let mut newest_first = self.leases.iter().rev();
        if let Some((id, lease)) = newest_first.find(|(_, l)| own(l) && l.windows.covers(asked)) {
            return Ok(self.granted(*id, lease));
        }
        if self.fenced(node, instance) {
            let instance = instance.to_owned();
            return Err(RuleError::Fenced { instance });
        }

        let windows = self.joined(node, instance, asked);
        let replaced = self.replaced_by(node, instance, windows);
        self.free_for(now, by, windows, &replaced)?;
        self.within_memory(by, windows, &replaced)?;
        let fresh = windows.windows().filter(|w| self.held_in(&replaced, *w).is_none());
        let fresh: Vec<u32> = fresh.collect();
        // Windows that nobody else may have are not hoarded, and its own are only taken back.
        let hoarded = fresh.iter().any(|w| !self.demand.reserved.contains_key(w));
        if hoarded {
            self.not_paused(now, node)?;
            self.within_quota(by, fresh.len() as u32, &replaced)?;
        }

        let rate = |window| {
            let frozen = self.held_in(&replaced, window).and_then(|lease| lease.rate_of(window));
            frozen.unwrap_or_else(|| self.rate_now(now, window))
        };
        let rates = windows.windows().map(rate).collect();
        let mut replaces = Vec::new();
        for id in replaced {
            let Some(lease) = self.leases.get(&id) else {
                continue;
            };
            let (older, is_ready) = (lease.instance.clone(), lease.ready());
            if older != instance {
                self.fence(node, &older);
            }
            if is_ready {
                replaces.push(id);
            } else {
                self.end(id, Ending::Replaced);
            }
        }
        self.generation += 1;
        let id = self.generation;
        let lease = Lease {
            node,
            instance: instance.to_owned(),
            windows,
            rates,
            replaces,
            renewed_at: now,
            progress_at: now,
            progress: Progress::Claimed,
            report: None,
        };
        let claim = self.granted(id, &lease);
        self.leases.insert(id, lease);
        self.settle(now, relays);
        Ok(claim)
    }

    /// Takes the report of the process that holds claim `id`, and renews its lease. A report that it is leaving gives
    /// the claim back. Returns the seconds that the lease lasts from now.
    ///
    /// # Errors
    /// [`RuleError::Fenced`], [`RuleError::Expired`], [`RuleError::Stalled`], [`RuleError::Absent`],
    /// [`RuleError::UnknownClaim`], [`RuleError::ForeignClaim`], [`RuleError::BadHolder`], [`RuleError::WrongWindow`], [`RuleError::WrongModel`],
    /// [`RuleError::TooLong`] or [`RuleError::Withdrawn`].
    pub fn report(
        &mut self,
        now: Millis,
        relays: &[String],
        node: PublicKey,
        id: u64,
        report: StageReport,
    ) -> Result<u32, RuleError> {
        self.on_market()?;
        self.settle(now, relays);
        let instance = &report.holder.instance;
        let own = self.leases.get(&id).is_some_and(|lease| lease.instance == *instance);
        if !own && self.fenced(node, instance) {
            let instance = report.holder.instance;
            return Err(RuleError::Fenced { instance });
        }
        let lease = self.lease_of(node, id)?;
        let windows = lease.windows;
        if report.holder.node != node.to_string()
            || report.holder.instance != lease.instance
            || verify_holder(&report.holder).is_err()
        {
            return Err(RuleError::BadHolder);
        }
        let wanted = self.layers(windows);
        if report.layers != wanted {
            let reported = report.layers;
            return Err(RuleError::WrongWindow { wanted, reported });
        }
        let identity = &self.demand.template.model.identity;
        if report.identity != *identity {
            return Err(RuleError::WrongModel {
                wanted: identity.clone(),
                reported: report.identity,
            });
        }
        let report = bounded(report)?;
        if report.state == StageState::Leaving {
            self.end(id, Ending::Left);
        } else {
            self.catch_up(report.epoch);
            self.note_unjoined(id, &report);
            self.note_absence(now, id, &report);
            if !self.leases.contains_key(&id) {
                self.settle(now, relays);
                return Err(self.why_over(id));
            }
            self.renew(now, id, report);
        }
        self.settle(now, relays);
        Ok(self.lease_s())
    }

    /// Gives a claim back.
    ///
    /// # Errors
    /// As [`RingState::report`] for a claim that isn't the node's or is over.
    pub fn leave(&mut self, now: Millis, relays: &[String], node: PublicKey, id: u64) -> Result<(), RuleError> {
        self.on_market()?;
        self.settle(now, relays);
        self.lease_of(node, id)?;
        self.end(id, Ending::Left);
        self.settle(now, relays);
        Ok(())
    }

    /// Windows that the node may add to its claims that aren't ready; none when only memory limits it.
    pub(super) fn window_limit(&self, now: Millis, node: PublicKey) -> Option<u32> {
        if self.paused(now, node).is_some() {
            return Some(0);
        }
        let failures = self.nodes.get(&node).map_or(0, |standing| standing.failures);
        allowed_windows(failures)
    }

    fn granted(&self, id: u64, lease: &Lease) -> Claim {
        Claim {
            id,
            generation: id,
            windows: lease.windows,
            rate: lease.rate(),
            lease_s: self.lease_s(),
        }
    }

    fn lease_of(&self, node: PublicKey, id: u64) -> Result<&Lease, RuleError> {
        let Some(lease) = self.leases.get(&id) else {
            return Err(self.why_over(id));
        };
        if lease.node != node {
            return Err(RuleError::ForeignClaim { id });
        }
        Ok(lease)
    }

    fn why_over(&self, id: u64) -> RuleError {
        if id == 0 || id > self.generation {
            return RuleError::UnknownClaim { id };
        }
        match self.ended.iter().find(|(ended, _)| *ended == id) {
            Some((_, Ending::Stalled)) => RuleError::Stalled { id },
            Some((_, Ending::Absent)) => RuleError::Absent { id },
            _ => RuleError::Expired { id },
        }
    }

    /// The windows asked for and all that the same process holds next to them.
    fn joined(&self, node: PublicKey, instance: &str, asked: Run) -> Run {
        let mut run = asked;
        loop {
            let touches = |lease: &&Lease| {
                let next = lease.windows.start <= run.end && run.start <= lease.windows.end;
                lease.node == node && lease.instance == instance && next && !run.covers(lease.windows)
            };
            let Some(lease) = self.leases.values().find(touches) else {
                return run;
            };
            run = Run {
                start: run.start.min(lease.windows.start),
                end: run.end.max(lease.windows.end),
            };
        }
    }

    /// The node's claims that a claim on `windows` would replace, newest first: its own process's, and those of older
    /// processes whose serving claims lie in it whole.
    fn replaced_by(&self, node: PublicKey, instance: &str, windows: Run) -> Vec<u64> {
        let own = self.leases.iter().rev().filter(|(_, lease)| lease.node == node);
        let own: Vec<(&u64, &Lease)> = own.filter(|(_, lease)| lease.windows.overlaps(windows)).collect();
        let whole = |of: &str| {
            let serving = own.iter().filter(|(_, lease)| lease.instance == of && lease.serves());
            serving.clone().count() > 0 && serving.clone().all(|(_, lease)| windows.covers(lease.windows))
        };
        let replaced = own.iter().filter(|(_, l)| l.instance == instance || whole(&l.instance));
        replaced.map(|(id, _)| **id).collect()
    }

    fn held_in(&self, ids: &[u64], window: u32) -> Option<&Lease> {
        let mut leases = ids.iter().filter_map(|id| self.leases.get(id));
        leases.find(|lease| lease.windows.holds(window))
    }

    fn free_for(&self, now: Millis, by: &Claimant, windows: Run, replaced: &[u64]) -> Result<(), RuleError> {
        let free = |window: u32| {
            let reserved = self.demand.reserved.get(&window);
            let mut others = self.leases.iter().filter(|(id, _)| !replaced.contains(id));
            reserved.is_none_or(|node| *node == by.node) && !others.any(|(_, lease)| lease.windows.holds(window))
        };
        match windows.windows().find(|window| !free(*window)) {
            Some(window) => Err(RuleError::Taken {
                window,
                open: self.open(now, by.node),
            }),
            None => Ok(()),
        }
    }

    fn within_memory(&self, by: &Claimant, windows: Run, replaced: &[u64]) -> Result<(), RuleError> {
        let kept = self.leases.iter().filter(|(id, _)| !replaced.contains(id));
        let kept = kept.filter(|(_, lease)| lease.node == by.node);
        let kept = kept.fold(0, |sum: u64, (_, lease)| sum.saturating_add(self.memory(lease.windows)));
        let wanted = kept.saturating_add(self.memory(windows));
        if wanted > by.memory {
            return Err(RuleError::TooLarge {
                windows,
                wanted,
                memory: by.memory,
            });
        }
        Ok(())
    }

    fn within_quota(&self, by: &Claimant, fresh: u32, replaced: &[u64]) -> Result<(), RuleError> {
        let failures = self.nodes.get(&by.node).map_or(0, |standing| standing.failures);
        let unready = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.node == by.node && !lease.ready());
        let (unready, wanted, allowed) = match allowed_windows(failures) {
            None => {
                let claims = unready.filter(|(id, _)| !replaced.contains(id)).count() as u32;
                let claims = claims.saturating_add(by.unready_elsewhere);
                (claims, claims.saturating_add(1), UNREADY_CLAIMS)
            }
            Some(allowed) => {
                let windows = unready.flat_map(|(_, lease)| lease.windows.windows());
                let windows = windows.filter(|window| !self.covered(*window)).count() as u32;
                let windows = windows.saturating_add(by.unready_elsewhere);
                (windows, windows.saturating_add(fresh), allowed)
            }
        };
        if wanted > allowed {
            return Err(RuleError::Quota {
                unready,
                failures,
                allowed,
            });
        }
        Ok(())
    }

    fn renew(&mut self, now: Millis, id: u64, report: StageReport) {
        let instance = report.holder.instance.clone();
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let node = lease.node;
        let progress = Progress::of(&report.state);
        let was_ready = lease.ready();
        if progress > lease.progress || was_ready {
            lease.progress_at = now;
            lease.progress = progress;
        }
        lease.report = Some(report);
        let became_ready = lease.ready() && !was_ready;
        let unloaded = was_ready && !lease.ready();
        let mut replaced = if became_ready {
            std::mem::take(&mut lease.replaces)
        } else {
            Vec::new()
        };
        // One process, one heartbeat: what it serves while it fetches more is alive as well.
        for lease in self.leases.values_mut() {
            if lease.node == node && lease.instance == instance {
                lease.renewed_at = now;
            }
            if unloaded && lease.replaces.contains(&id) {
                replaced.push(id);
            }
        }
        for old in replaced {
            self.end(old, Ending::Replaced);
        }
        if became_ready && let Some(standing) = self.nodes.get_mut(&node) {
            standing.failures = 0;
        }
    }

    /// Remembers two neighbours that could not be joined by a direct link: the next manifest sends them over a relay.
    fn note_unjoined(&mut self, id: u64, report: &StageReport) {
        let Some(published) = &self.published else {
            return;
        };
        let (ranks, claims) = (&published.manifest.ranks, &published.claims);
        let Some(edge) = report
            .lost_edge
            .map(|edge| edge as usize)
            .filter(|edge| *edge < claims.len())
        else {
            return;
        };
        let next = (edge + 1) % claims.len();
        let pair = (claims[edge], claims[next]);
        let at_edge = pair.0 == id || pair.1 == id;
        let alive = self.leases.contains_key(&pair.0) && self.leases.contains_key(&pair.1);
        let direct = ranks[next]
            .holder
            .as_ref()
            .is_some_and(|holder| matches!(holder.link, Link::Direct { .. }));
        if report.lost_epoch == Some(published.manifest.epoch)
            && (at_edge && alive && direct)
            && !self.unjoined.contains(&pair)
        {
            self.unjoined.push(pair);
        }
    }
}

fn allowed_windows(failures: u32) -> Option<u32> {
    let worst = UNREADY_WINDOWS.len() - 1;
    let place = failures.checked_sub(1)? as usize;
    Some(UNREADY_WINDOWS[place.min(worst)])
}

fn text(what: &'static str, text: &str, limit: usize) -> Result<(), RuleError> {
    if text.len() > limit {
        return Err(RuleError::TooLong { what, limit });
    }
    Ok(())
}

/// The report without what no honest stage says: addresses that can't be dialled are refused, long texts are cut.
fn bounded(mut report: StageReport) -> Result<StageReport, RuleError> {
    text(
        "the network's name",
        report.reach.network.as_deref().unwrap_or_default(),
        MAX_NETWORK,
    )?;
    if let Some(address) = &report.reach.address {
        let link = Link::Direct {
            address: address.clone(),
        };
        if !link.is_sound() {
            return Err(RuleError::BadAddress);
        }
    }
    if let Some(reason) = &mut report.lost_reason {
        cut(reason);
    }
    if let StageState::Ready { backend, .. } = &mut report.state {
        cut(backend);
    }
    Ok(report)
}

fn cut(text: &mut String) {
    if text.len() <= MAX_TEXT {
        return;
    }
    let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
}
