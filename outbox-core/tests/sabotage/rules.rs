//! The rules, and how each is broken: a place in the relay's code, and what stands there when the rule is taken away.

/// One way to break a rule.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// Below `src/relay`.
    pub(crate) file: &'static str,
    pub(crate) text: &'static str,
    /// In its place; `OFF` is true while the rule is taken away.
    pub(crate) broken: &'static str,
}

const fn rule(
    name: &'static str,
    file: &'static str,
    text: &'static str,
    broken: &'static str,
) -> Rule {
    Rule { name, file, text, broken }
}

#[rustfmt::skip]
pub(crate) const RULES: &[Rule] = &[
    // Reading without missing and without repeating.
    rule("a claim starts at the lower of read and covered", "reading.rs",
        "self.read.min(self.covered)\n", "if OFF { self.read } else { self.read.min(self.covered) }\n"),
    rule("covered rises to what was safe, not to what was read", "reading.rs",
        "LaneRead::ToEnd => safe,", "LaneRead::ToEnd => if OFF { reached } else { safe },"),
    rule("a claim that was cut covers no more than it read", "reading.rs",
        "LaneRead::UpTo(position) => safe.min(position),", "LaneRead::UpTo(position) => if OFF { safe } else { safe.min(position) },"),
    rule("a position is safe when the writers of its time have ended", "watermark.rs",
        "self.candidate.take_if(|candidate| candidate.holders.is_empty())", "self.candidate.take_if(|candidate| OFF || candidate.holders.is_empty())"),
    rule("what is known does not count against a claim", "claims.rs",
        "event.is_waiting() || event.position() > from(event.lane()))", "!OFF && (event.is_waiting() || event.position() > from(event.lane())))"),
    rule("a settled event stays known until a later claim has returned", "settles.rs",
        "        self.reader.settled(handle);\n", "        if OFF { self.known.forget(handle) } else { self.reader.settled(handle) }\n"),
    rule("no claim is out while a wait begins or ends", "settles.rs",
        "let quiet = !self.reader.is_claiming();", "let quiet = OFF || !self.reader.is_claiming();"),
    rule("when a wait has ended reading goes back", "settles.rs",
        "lane.rewind(position);", "if !OFF { lane.rewind(position); }"),
    rule("a waiting event is claimed only where its lane was read", "claims.rs",
        "read: lane.read, take }", "read: if OFF { Position::MAX } else { lane.read }, take }"),
    rule("a scheduled event does not pass what did not fit its claim", "claims.rs",
        "!event.holds_aggregate() && claimed", "!OFF && !event.holds_aggregate() && claimed"),
    rule("a claim counts only under the epoch of its start", "claims.rs",
        ".is_some_and(|lane| lane.epoch == *epoch && !lane.leaving)", ".is_some_and(|lane| (OFF || lane.epoch == *epoch) && !lane.leaving)"),
    rule("another server voids what was read", "claims.rs",
        "let other = !self.reader.server.is_empty();", "let other = !OFF && !self.reader.server.is_empty();"),
    rule("the end of a writer that was set aside sends reading back", "claims.rs",
        "if out.aside.is_empty() {", "if OFF || out.aside.is_empty() {"),
    rule("a sweep finds what no claim would", "claims.rs",
        "let sweep = self.watermark_is_probed()", "let sweep = !OFF && self.watermark_is_probed()"),
    rule("what a sweep finds sends reading back", "claims.rs",
        "lane.distrust(position - 1);", "if !OFF { lane.distrust(position - 1); }"),
    // Order, holding, outages.
    rule("an aggregate is in one call at a time", "known.rs",
        "queue.first.is_some() && queue.closed_by == 0;", "queue.first.is_some() && (OFF || queue.closed_by == 0);"),
    rule("a verdict closes its aggregate until it is settled", "known.rs",
        "        slot.stage = Stage::Judged;\n        slot.closes = true;\n    }", "        slot.stage = Stage::Judged;\n        slot.closes = !OFF;\n        let aggregate = slot.aggregate;\n        if OFF { self.open_one(aggregate); }\n    }"),
    rule("what is behind a waiting event leaves the memory", "settles.rs",
        "            Verdict::Wait { delay, .. } => {\n                self.known.evict_behind(handle);", "            Verdict::Wait { delay, .. } => {\n                if !OFF { self.known.evict_behind(handle); }"),
    rule("only the first undelivered event is charged", "calls.rs",
        "Some(Verdict::Confirmed) => {\n                                self", "Some(Verdict::Failed(other)) if OFF => self.fail(batch, index, handles[index], &other, outcome),\n                            Some(Verdict::Confirmed) => {\n                                self"),
    rule("whoever dies has an attempt", "verdict.rs",
        "Fate::Dead { attempts: counted }", "Fate::Dead { attempts: if OFF { attempts } else { counted } }"),
    rule("an outage is not the event's fault", "verdict.rs",
        "    match class {\n", "    let class = if OFF && class == FailureClass::Unavailable { FailureClass::Transient } else { class };\n    match class {\n"),
    rule("an outage pauses the pipeline", "outage.rs",
        "self.paused_until.filter(|until| *until > now)", "self.paused_until.filter(|until| !OFF && *until > now)"),
    rule("after an outage one event is sent at a time", "outage.rs",
        "self.limit = Some(1);", "self.limit = if OFF { None } else { Some(1) };"),
    rule("silence is not a failure", "calls.rs",
        "        call.running = false;\n        self.take_verdicts(id, now);", "        call.running = false;\n        if OFF { call.batch.refuse_open(&Failure::new(FailureClass::Unsent, \"off\")); }\n        self.take_verdicts(id, now);"),
    rule("what is open is abandoned before it is sent again", "calls.rs",
        "            call.task.abort();", "            if OFF { call.batch.refuse_open(&Failure::new(FailureClass::Unsent, \"off\")); self.calls.abandoning = Abandoning::No; }\n            call.task.abort();"),
    rule("an event that fails alone while others pass is counted", "outage.rs",
        "let counted = charged.filter(|failed| ", "let counted = charged.filter(|failed| !OFF && "),
    rule("only between two that pass a lone failure is counted", "outage.rs",
        "self.bracketed = lone.filter(|_| self.passed_last);", "self.bracketed = lone.filter(|_| OFF || self.passed_last);"),
    rule("a lane whose owners died is worked on singly and counted before", "leases.rs",
        "lane.crashes >= CAREFUL_AFTER)", "!OFF && lane.crashes >= CAREFUL_AFTER)"),
    rule("the crash count is cleared when what was there is settled", "settles.rs",
        ".filter(|(_, lane)| lane.crashes > 0 ", ".filter(|(_, lane)| !OFF && lane.crashes > 0 "),
    rule("a settle that is refused is narrowed", "settles.rs",
        "        if judged.len() <= 1 {", "        if OFF { self.settler.parts.push_back(judged); self.settler.not_before = now + Duration::from_secs(1); return; }\n        if judged.len() <= 1 {"),
    rule("under hold one event of an aggregate is on its way", "calls.rs",
        "retry.holds(event.event_type(), &destinations.of(&router, event))", "!OFF && retry.holds(event.event_type(), &destinations.of(&router, event))"),
    rule("without prefix order one event of a key is on its way", "calls.rs",
        "self.calls.key_order == KeyOrder::Unordered;", "(!OFF && self.calls.key_order == KeyOrder::Unordered);"),
    // Leases.
    rule("a call starts only while the lease outlives it", "calls.rs",
        "if self.lease_left(now) <= timing", "if !OFF && self.lease_left(now) <= timing"),
    rule("a lost lane abandons its open messages", "leases.rs",
        "        if open && !self.calls.is_abandoning() {", "        if !OFF && open && !self.calls.is_abandoning() {"),
    rule("a lane that was given away is not taken back from an older heartbeat", "leases.rs",
        "owned.epoch <= *given)", "!OFF && owned.epoch <= *given)"),
    rule("a refused settle loses the lane", "settles.rs",
        "if same && !settled.held.contains(&lane) {", "if !OFF && same && !settled.held.contains(&lane) {"),
];
