------------------------------- MODULE Recovery -------------------------------
(* How replicas of a Raft group lose their memory and recover it, and how the
   group's members change meanwhile: the rules of dledger/recovery.py,
   ballot.py, quorum.py, membership.py and of Raft itself, without time,
   messages and disks.

   What was once said is never unsaid: candidacies, grants, a leader's log,
   acknowledgements, barriers and certificates are kept for ever, and whoever
   may hear one may hear it at any later time, again, or never. So every delay,
   loss, repetition and order of messages is covered, with the loss of a
   machine that takes no further step.

   A leader's knowledge is taken to be complete: a frame counts as committed,
   and a certificate as given, as soon as everything that it needs was said.
   What must then be kept is more than in reality, never less.

   docs/model.md says what is left out, and how to run it. *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Replicas,     \* all that ever take part
  Founders,     \* the voters of broker.conf; the others join
  Nobody,       \* no replica
  TermMax,      \* the highest term
  AtOnce,       \* TRUE: what is written is at once durable and acknowledged
  Broken        \* the rules that are taken away, by name

VARIABLES
  (* One value for each replica. *)
  term,         \* its term
  vote,         \* its vote in that term: <<candidate, its incarnation>>
  log,          \* its frames: <<term, voters>>; voters = {}: no configuration
  kept,         \* how many frames it has said to be durable
  recovered,    \* FALSE: it may have forgotten promises, and says so
  incarnation,  \* the number of its process
  noted,        \* its configuration file: <<index, voters>>
  outdated,     \* TRUE: its store was set back, and nobody has told it yet
  (* What was said, kept for ever. *)
  candidacies,  \* [term, replica, incarnation, end of its log, voters]
  grants,       \* <<term, candidate, its incarnation, voter, standing>>
  office,       \* for each term, who led it: [replica, incarnation, first, electors]
  ledger,       \* for each term, its leader's log
  acks,         \* for each term and replica: acknowledged up to here, recovered
  joined,       \* <<term, replica, incarnation>>: has the first frame, recovering
  barriers,     \* <<term, replica, incarnation, index>>
  certificates, \* <<term, replica, incarnation>>: found to be recovered
  (* What follows from it. *)
  committed     \* for each term: its leader's log is committed up to here

own == <<term, vote, log, kept, recovered, incarnation, noted, outdated>>
said == <<candidacies, grants, office, ledger, acks, joined, barriers>>
vars == <<own, said, certificates, committed>>

Terms == 1..TermMax
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Least(x, y) == IF x < y THEN x ELSE y
Most(x, y) == IF x > y THEN x ELSE y
Majority(S) == Cardinality(S) \div 2 + 1
Rule(name) == name \notin Broken
NoVote == <<Nobody, 0>>

-------------------------------------------------------------------------------
(* Logs and configurations *)

Last(frames) == IF frames = <<>> THEN 0 ELSE frames[Len(frames)][1]

(* How far two logs are the same. By log matching one equal frame is enough. *)
Common(one, other) ==
  Max({0} \cup {i \in 1..Least(Len(one), Len(other)) : one[i] = other[i]})

(* The frame of the newest configuration; 0: there is none. *)
Newest(frames) == Max({0} \cup {i \in 1..Len(frames) : frames[i][2] # {}})

InForce(r) == LET i == Newest(log[r]) IN
  IF i > noted[r][1] THEN log[r][i][2] ELSE noted[r][2]

(* The voters by whom the leader of a term counts. *)
Voters(frames) == LET i == Newest(frames) IN IF i = 0 THEN Founders ELSE frames[i][2]

NothingNoted(r) == <<0, IF r \in Founders THEN Founders ELSE {}>>

(* All configurations that may come back into force at a replica. *)
Known(r) == {noted[r][2]} \cup
  {log[r][i][2] : i \in {j \in noted[r][1] + 1 .. Len(log[r]) : log[r][j][2] # {}}}

(* By which it campaigns. *)
Electorates(r) ==
  IF Rule("a configuration is in force from its append on") THEN {InForce(r)} ELSE Known(r)

(* It has all that it ever promised. *)
Sound(r) == recovered[r] /\ ~outdated[r]

(* The promise: of every configuration that a replica still uses, no more voters
   have lost something than a majority leaves over. *)
Promised == \A r \in Replicas : LET C == InForce(r) IN
  C = {} \/ Cardinality({v \in C : ~Sound(v)}) + Majority(C) <= Cardinality(C)

(* It takes a word of another replica. That begins with what the other one knows of
   it, so an older store recovers first. *)
Hears(r) == ~outdated[r] \/ ~Rule("older stores are told")

-------------------------------------------------------------------------------
(* What follows from what was said *)

Standing(r) == IF recovered[r] THEN 0 ELSE incarnation[r]
Office(t) == CHOOSE o \in office[t] : TRUE
LedBy(t, r) == \E o \in office[t] : o.replica = r
Leads(r) == term[r] > 0 /\ \E o \in office[term[r]] :
  o.replica = r /\ o.incarnation = incarnation[r]

(* Whose acknowledgements a leader counts. *)
Counted(C, leader) ==
  CASE ~Rule("only voters count") -> Replicas
    [] ~Rule("a leader that is removed does not count itself") -> C \cup {leader}
    [] OTHER -> C

CommitIndex(frames, o, ack) ==
  LET C == Voters(frames)
      counted == Counted(C, o.replica)
  IN Max({0} \cup {i \in {ack[v] : v \in counted} :
       /\ i >= o.first
       /\ Cardinality({v \in counted : ack[v] >= i}) >= Majority(C)})

Holders(t, index, w) == {v \in Voters(ledger[t]) \ {w} : acks[t][v] >= index}

(* quorum.witnesses *)
Witnesses(C, w) ==
  CASE ~Rule("more than the leader vouches for a replica") -> 1
    [] w \in C \/ ~Rule("for one that does not vote a majority vouches") ->
         Most(1, Least(Majority(C), Cardinality(C) - 1))
    [] OTHER -> Majority(C)

Vouched(t, index, w) ==
  Cardinality(Holders(t, index, w)) >= Witnesses(Voters(ledger[t]), w)

(* The replica, as this incarnation in this term, has the leader's log up to there. *)
Reached(t, w, i, index) ==
  /\ term[w] = t /\ incarnation[w] = i /\ ~recovered[w]
  /\ kept[w] >= index /\ Common(log[w], ledger[t]) >= index

ByBarrier(t) ==
  {<<b[1], b[2], b[3]>> : b \in {b \in barriers :
    /\ b[1] = t
    /\ IF Rule("a barrier proposed after the loss")
       THEN Reached(t, b[2], b[3], b[4]) /\ Vouched(t, b[4], b[2])
       ELSE Reached(t, b[2], b[3], 0)}}

(* A leader that a majority of recovered voters elected, though it is recovering. *)
OfLeader(t) ==
  {<<t, o.replica, o.incarnation>> : o \in {o \in office[t] :
    /\ o.electors = {}
    /\ Reached(t, o.replica, o.incarnation, o.first)
    /\ Vouched(t, o.first, o.replica)}}

(* All voters have elected a provisional leader, and have its first frame. *)
ByFounding(t) ==
  UNION {{<<t, e[1], e[2]>> : e \in o.electors} : o \in {o \in office[t] :
    /\ term[o.replica] = t /\ incarnation[o.replica] = o.incarnation
    /\ Len(ledger[t]) >= o.first /\ kept[o.replica] >= o.first
    /\ \A e \in o.electors : \/ e[1] = o.replica
                             \/ e[2] = 0 /\ acks[t][e[1]] >= o.first
                             \/ <<t, e[1], e[2]>> \in joined
                             \/ ~Rule("founding waits for all voters")}}

(* What has changed in term t: its commit index, and whom its leader certifies. *)
Follows(t) ==
  /\ committed' = [committed EXCEPT ![t] =
       Max({@} \cup {CommitIndex(ledger'[t], o, acks'[t]) : o \in office'[t]})]
  /\ certificates' = certificates \cup (ByBarrier(t) \cup OfLeader(t) \cup ByFounding(t))'

NothingFollows == UNCHANGED <<committed, certificates>>

(* Replica r says, as the follower or leader of term t, that it has the frames up to
   index durable. *)
Heard(r, t, index) ==
  /\ acks' = IF recovered[r] \/ ~Rule("only recovered replicas' copies count")
       THEN [acks EXCEPT ![t][r] = Most(@, index)] ELSE acks
  /\ joined' = IF ~recovered[r] /\ \E o \in office[t] : o.electors # {} /\ index >= o.first
       THEN joined \cup {<<t, r, incarnation[r]>>} ELSE joined

(* Replica r's log becomes `frames`, equal to the log of term t's leader up to index. *)
Written(r, t, frames, index) ==
  LET same == Common(log[r], frames) IN
  /\ log' = [log EXCEPT ![r] = frames]
  /\ IF AtOnce
     THEN kept' = [kept EXCEPT ![r] = Len(frames)] /\ Heard(r, t, index)
     ELSE kept' = [kept EXCEPT ![r] = Least(@, same)] /\ UNCHANGED <<acks, joined>>

-------------------------------------------------------------------------------
(* Elections *)

MayCampaign(r) ==
  /\ \E C \in Known(r) : r \in C
  /\ \/ recovered[r]
     \/ noted[r][1] > 0 \/ Newest(log[r]) = 0  \* else it met that in a frame

Enter(r, t, v) ==
  /\ term' = [term EXCEPT ![r] = t]
  /\ vote' = [vote EXCEPT ![r] = v]

(* A replica hears of a higher term. *)
Observe(r, t) ==
  /\ term[r] < t /\ Hears(r)
  /\ Enter(r, t, NoVote)
  /\ UNCHANGED <<log, kept, recovered, incarnation, noted, outdated, said>>
  /\ NothingFollows

Campaign(r, t, voters) ==
  /\ term[r] < t /\ MayCampaign(r) /\ voters \in Electorates(r)
  /\ Enter(r, t, <<r, incarnation[r]>>)
  /\ candidacies' = candidacies \cup {[term |-> t, replica |-> r,
       incarnation |-> incarnation[r], end |-> <<Last(log[r]), Len(log[r])>>,
       voters |-> voters]}
  /\ grants' = grants \cup {<<t, r, incarnation[r], r, Standing(r)>>}
  /\ UNCHANGED <<log, kept, recovered, incarnation, noted, outdated>>
  /\ UNCHANGED <<office, ledger, acks, joined, barriers>>
  /\ NothingFollows

(* Raft 5.4.1 *)
IsUpToDate(end, frames) ==
  \/ end[1] > Last(frames)
  \/ end[1] = Last(frames) /\ end[2] >= Len(frames)

Grant(v, c) ==
  /\ v # c.replica /\ v \in c.voters /\ term[v] <= c.term /\ Hears(v)
  /\ IsUpToDate(c.end, log[v])
  /\ \/ term[v] < c.term \/ vote[v] = NoVote
     \/ vote[v] = <<c.replica, c.incarnation>>  \* again, to the same candidacy only
  /\ Enter(v, c.term, <<c.replica, c.incarnation>>)
  /\ grants' = grants \cup {<<c.term, c.replica, c.incarnation, v, Standing(v)>>}
  /\ UNCHANGED <<log, kept, recovered, incarnation, noted, outdated>>
  /\ UNCHANGED <<candidacies, office, ledger, acks, joined, barriers>>
  /\ NothingFollows

(* It neither leads yet nor has heard of another leader of the term: then it would
   know of no incarnation that it voted for. *)
IsCandidate(c) ==
  /\ term[c.replica] = c.term /\ vote[c.replica] = <<c.replica, c.incarnation>>
  /\ incarnation[c.replica] = c.incarnation /\ ~Leads(c.replica)

(* A majority of recovered voters has granted, or all have. *)
Win(c) ==
  LET r == c.replica
      t == c.term
      granted == {<<g[4], g[5]>> : g \in {g \in grants :
        g[1] = t /\ g[2] = r /\ g[3] = c.incarnation /\ g[4] \in c.voters}}
      voters == {g[1] : g \in granted}
      sound == {g[1] : g \in {g \in granted :
        g[2] = 0 \/ ~Rule("only recovered voters make a majority")}}
      byMajority == Cardinality(sound) >= Majority(c.voters)
      byAll == Rule("all means all") /\ voters = c.voters
      byAllButOne == ~Rule("all means all") /\ Cardinality(voters) + 1 >= Cardinality(c.voters)
      frames == IF AtOnce THEN Append(log[r], <<t, {}>>) ELSE log[r]
  IN
  /\ IsCandidate(c) /\ Hears(r)
  /\ byMajority \/ byAll \/ byAllButOne
  /\ office' = [office EXCEPT ![t] = @ \cup {[replica |-> r, incarnation |-> c.incarnation,
       first |-> Len(log[r]) + 1,
       electors |-> IF byMajority \/ byAllButOne THEN {} ELSE granted]}]
  /\ ledger' = [ledger EXCEPT ![t] = frames]
  /\ Written(r, t, frames, Len(frames))
  /\ UNCHANGED <<term, vote, recovered, incarnation, noted, outdated>>
  /\ UNCHANGED <<candidacies, grants, barriers>>
  /\ Follows(t)

-------------------------------------------------------------------------------
(* Replication *)

(* A leader appends a frame: a no-op, a message (voters = {}), or a configuration. *)
Propose(r, voters) ==
  LET t == term[r]
      frames == Append(ledger[t], <<t, voters>>)
  IN
  /\ Leads(r)
  /\ ledger' = [ledger EXCEPT ![t] = frames]
  /\ Written(r, t, frames, Len(frames))
  /\ UNCHANGED <<term, vote, recovered, incarnation, noted, outdated>>
  /\ UNCHANGED <<candidacies, grants, office, barriers>>
  /\ Follows(t)

(* One voter more or less: thesis chapter 4, and membership.py. *)
MayChange(r, C) ==
  LET t == term[r]
      before == Voters(ledger[t])
      sound == {v \in C : acks[t][v] > 0 \/ recovered[v]}  \* or it was, when it said so
  IN
  /\ Leads(r) /\ C # {} /\ r \in before
  /\ Cardinality(C \ before) + Cardinality(before \ C) <= 1
  /\ committed[t] > 0  \* a frame of its own term is committed
  /\ committed[t] >= Newest(ledger[t]) \/ ~Rule("one change at a time")
  /\ C \ before \subseteq sound
  /\ Cardinality(sound) >= Majority(C)

(* What a replica's log is when it has taken its leader's frames up to index. *)
Taken(r, t, index) ==
  IF Len(log[r]) >= index /\ (index = 0 \/ log[r][index] = ledger[t][index])
  THEN log[r] ELSE SubSeq(ledger[t], 1, index)

(* A replica takes frames, or a heartbeat (index 0), of the leader of term t. *)
Follow(r, t, index) ==
  LET frames == Taken(r, t, index) IN
  /\ term[r] <= t /\ office[t] # {} /\ ~LedBy(t, r) /\ index <= Len(ledger[t]) /\ Hears(r)
  /\ Enter(r, t, IF term[r] < t THEN NoVote ELSE IF vote[r][1] = r THEN <<r, 0>> ELSE vote[r])
  /\ Written(r, t, frames, index)
  /\ UNCHANGED <<recovered, incarnation, noted, outdated>>
  /\ UNCHANGED <<candidacies, grants, office, ledger, barriers>>
  /\ Follows(t)

(* A replica says how much of its leader's log is durable here. *)
Acknowledge(r, index) ==
  LET t == term[r] IN
  /\ t > 0 /\ office[t] # {} /\ index <= Common(log[r], ledger[t]) /\ Hears(r)
  /\ kept' = [kept EXCEPT ![r] = Most(@, index)]
  /\ Heard(r, t, index)
  /\ UNCHANGED <<term, vote, log, recovered, incarnation, noted, outdated>>
  /\ UNCHANGED <<candidacies, grants, office, ledger, barriers>>
  /\ Follows(t)

-------------------------------------------------------------------------------
(* Recovery *)

(* A leader learns of a recovering incarnation; its next frame is the barrier. *)
Meet(r, w, i) ==
  LET t == term[r]
      b == <<t, w, i, Len(ledger[t]) + 1>>
  IN
  /\ Leads(r) /\ r # w /\ i <= incarnation[w]
  /\ barriers' = barriers \cup {b}
  /\ UNCHANGED <<own, candidacies, grants, office, ledger, acks, joined>>
  /\ Follows(t)

(* A replica hears that it is recovered. If it knows of no vote of its own in this
   term it notes one for the leader. *)
Recover(r) ==
  LET t == term[r] IN
  /\ ~recovered[r] /\ <<t, r, incarnation[r]>> \in certificates /\ Hears(r)
  /\ recovered' = [recovered EXCEPT ![r] = TRUE]
  /\ vote' = [vote EXCEPT ![r] = IF @ = NoVote THEN <<Office(t).replica, 0>> ELSE @]
  /\ acks' = IF AtOnce
       THEN [acks EXCEPT ![t][r] = Most(@, Common(log[r], ledger[t]))] ELSE acks
  /\ UNCHANGED <<term, log, kept, incarnation, noted, outdated>>
  /\ UNCHANGED <<candidacies, grants, office, ledger, joined, barriers>>
  /\ Follows(t)

-------------------------------------------------------------------------------
(* Ends of processes *)

Reborn(r, i) ==
  /\ incarnation[r] < i
  /\ incarnation' = [incarnation EXCEPT ![r] = i]
  /\ UNCHANGED said
  /\ NothingFollows

(* It keeps what it has said to be durable, and so all its promises. *)
Restart(r, i, length, file) ==
  /\ kept[r] <= length /\ length <= Len(log[r])
  /\ log' = [log EXCEPT ![r] = SubSeq(@, 1, length)]
  /\ vote' = [vote EXCEPT ![r] = <<@[1], 0>>]
  /\ recovered' = IF Rule("that it recovers is noted")
       THEN recovered ELSE [recovered EXCEPT ![r] = TRUE]
  /\ noted' = IF Rule("configurations outlive a restart")
       THEN [noted EXCEPT ![r] = file] ELSE [noted EXCEPT ![r] = <<length, NothingNoted(r)[2]>>]
  /\ UNCHANGED <<term, kept, outdated>>
  /\ Reborn(r, i)

(* It ends when it has written some of a leader's frames, or only truncated for
   them, and saved neither the new term nor said anything. *)
Torn(r, i, t, length, file) ==
  LET same == Common(log[r], ledger[t]) IN
  /\ term[r] <= t /\ office[t] # {} /\ ~LedBy(t, r)
  /\ same < Len(ledger[t]) /\ same <= length /\ length <= Len(ledger[t])
  /\ log' = [log EXCEPT ![r] = SubSeq(ledger[t], 1, length)]
  /\ kept' = [kept EXCEPT ![r] = Least(@, same)]
  /\ Enter(r, Most(term[r], Last(log'[r])), IF Last(log'[r]) > term[r] THEN NoVote ELSE <<vote[r][1], 0>>)
  /\ noted' = [noted EXCEPT ![r] = file]
  /\ UNCHANGED <<recovered, outdated>>
  /\ Reborn(r, i)

(* It loses promises: frames, its term and vote, its configuration file. What it
   has then of term and vote, if anything, is no newer than what it had. *)
Lose(r, i, length, t, v, file) ==
  /\ length <= Len(log[r]) /\ t <= term[r]
  /\ log' = [log EXCEPT ![r] = SubSeq(@, 1, length)]
  /\ kept' = [kept EXCEPT ![r] = Least(@, length)]
  /\ Enter(r, Most(t, Last(log'[r])), IF Last(log'[r]) > t THEN NoVote ELSE <<v, 0>>)
  /\ recovered' = [recovered EXCEPT ![r] = FALSE]
  /\ noted' = [noted EXCEPT ![r] = file]
  /\ outdated' = [outdated EXCEPT ![r] = FALSE]
  /\ Reborn(r, i)

(* All that replica r has, as an image of its disk keeps it. *)
Image(r) == [replica |-> r, term |-> term[r], vote |-> vote[r][1], log |-> log[r],
  kept |-> kept[r], recovered |-> recovered[r], noted |-> noted[r]]

(* More is known of a replica than its image has (rollback_detection.py): a leader has noted
   that it was recovered and had committed frames, a later one of them or in a later
   term. *)
Exceeded(image) == \E t \in Terms : \E o \in office[t] :
  LET index == Least(acks[t][image.replica], committed[t]) IN
  index >= o.first /\ (t > image.term \/ index > Len(image.log))

(* It starts with an image of which all others know more. *)
SetBack(r, i, image) ==
  /\ image.replica = r /\ Exceeded(image)
  /\ Enter(r, image.term, <<image.vote, 0>>)
  /\ log' = [log EXCEPT ![r] = image.log]
  /\ kept' = [kept EXCEPT ![r] = image.kept]
  /\ recovered' = [recovered EXCEPT ![r] = image.recovered]
  /\ noted' = [noted EXCEPT ![r] = image.noted]
  /\ outdated' = [outdated EXCEPT ![r] = TRUE]
  /\ Reborn(r, i)

(* It is told so, and recovers. Whatever it began ends, as if its process ended. *)
Recognise(r, i) ==
  /\ outdated[r]
  /\ outdated' = [outdated EXCEPT ![r] = FALSE]
  /\ recovered' = [recovered EXCEPT ![r] = FALSE]
  /\ UNCHANGED <<term, log, kept, noted>>
  /\ IF Rule("what an older store began ends")
     THEN vote' = [vote EXCEPT ![r] = <<@[1], 0>>] /\ Reborn(r, i)
     ELSE UNCHANGED <<vote, incarnation, said>> /\ NothingFollows

-------------------------------------------------------------------------------
(* What must hold *)

ElectionSafety == \A t \in Terms : Cardinality(office[t]) <= 1

(* What a leader has committed is in the log of every later leader. *)
LeaderCompleteness == \A t, later \in Terms :
  t < later /\ committed[t] > 0 /\ office[later] # {} =>
    /\ Len(ledger[later]) >= committed[t]
    /\ ledger[later][committed[t]] = ledger[t][committed[t]]

(* A recovered replica has what it acknowledged, as far as it is committed. *)
PromisesKept == \A r \in Replicas, t \in Terms :
  LET index == Least(acks[t][r], committed[t]) IN
  Sound(r) /\ index > 0 =>
    /\ Len(log[r]) >= index
    /\ log[r][index] = ledger[t][index]

(* Raft 5.3 *)
LogMatching == \A r, s \in Replicas :
  \A i \in 1..Least(Len(log[r]), Len(log[s])) :
    log[r][i][1] = log[s][i][1] => SubSeq(log[r], 1, i) = SubSeq(log[s], 1, i)
===============================================================================
