---------------------------- MODULE RecoveryCheck ----------------------------
(* The bounds within which TLC searches all behaviours of Recovery.

   Steps that can only take possibilities away are left out: hearing of a higher
   term and doing nothing else, voting for a candidacy that is over, and
   following without taking a frame. *)
EXTENDS Recovery

CONSTANTS
  Start,        \* "led": term 1 has a leader, all have its no-op; "blank": nobody began
  Leader,       \* of term 1
  LengthMax,    \* frames of a log
  LossesMax,    \* losses of memory
  RestartsMax,  \* restarts without one
  LossKinds,    \* of "disk", "votes", "frames", "image"
  Members,      \* TRUE: voters are added and removed
  Unpromised    \* TRUE: losses go beyond what is promised

VARIABLES
  losses, restarts,
  image         \* of a replica's disk, made once and put back later

allVars == <<vars, losses, restarts, image>>

NoImage == [replica |-> Nobody]

Begin == <<<<1, {}>>>>

Init ==
  LET led == Start = "led" IN
  /\ term = [r \in Replicas |-> IF led THEN 1 ELSE 0]
  /\ vote = [r \in Replicas |-> IF led THEN <<Leader, 1>> ELSE NoVote]
  /\ log = [r \in Replicas |-> IF led THEN Begin ELSE <<>>]
  /\ kept = [r \in Replicas |-> IF led THEN 1 ELSE 0]
  /\ recovered = [r \in Replicas |-> led]
  /\ incarnation = [r \in Replicas |-> 1]
  /\ noted = [r \in Replicas |-> NothingNoted(r)]
  /\ outdated = [r \in Replicas |-> FALSE]
  /\ candidacies = {}
  /\ grants = {}
  /\ office = [t \in Terms |-> IF led /\ t = 1
       THEN {[replica |-> Leader, incarnation |-> 1, first |-> 1, electors |-> {}]} ELSE {}]
  /\ ledger = [t \in Terms |-> IF led /\ t = 1 THEN Begin ELSE <<>>]
  /\ acks = [t \in Terms |-> [r \in Replicas |-> IF led /\ t = 1 THEN 1 ELSE 0]]
  /\ joined = {}
  /\ barriers = {}
  /\ certificates = {}
  /\ committed = [t \in Terms |-> IF led /\ t = 1 THEN 1 ELSE 0]
  /\ losses = 0 /\ restarts = 0 /\ image = NoImage

Room(r) == term[r] > 0 /\ Len(ledger[term[r]]) < LengthMax

Started == {0} \cup {c.term : c \in candidacies} \cup {t \in Terms : office[t] # {}}

Changes(r) == LET C == Voters(ledger[term[r]]) IN
  ({C \cup {n} : n \in Replicas} \cup {C \ {n} : n \in Replicas}) \ {C}

Step ==
  \/ \E r \in Replicas, t \in Terms : /\ t - 1 \in Started \cup {term[r]}
                                      /\ \E C \in Electorates(r) : Campaign(r, t, C)
  \/ \E c \in candidacies : IsCandidate(c) /\ \E v \in Replicas : Grant(v, c)
  \/ \E c \in candidacies : Len(log[c.replica]) < LengthMax /\ Win(c)
  \/ \E r \in Replicas : Room(r) /\ Propose(r, {})
  \/ \E r \in Replicas, t \in Terms : \E index \in 1..Len(ledger[t]) : Follow(r, t, index)
  \/ \E r, w \in Replicas : /\ Leads(r) /\ Len(ledger[term[r]]) < LengthMax
                            /\ ~recovered[w] /\ term[w] = term[r]
                            /\ ~\E b \in barriers : b[1] = term[r] /\ b[2] = w /\ b[3] = incarnation[w]
                            /\ Meet(r, w, incarnation[w])
  \/ \E r \in Replicas : Recover(r) \/ Recognise(r, incarnation[r] + 1)
  \/ Members /\ \E r \in Replicas : Leads(r) /\ Room(r) /\ \E C \in Changes(r) :
       MayChange(r, C) /\ Propose(r, C) /\ (Promised' \/ Unpromised)

End(r) ==
  \/ Restart(r, incarnation[r] + 1, Len(log[r]), noted[r])
  \/ \E t \in Terms : \E length \in 0..Len(ledger[t]) : Torn(r, incarnation[r] + 1, t, length, noted[r])

Forget(r) == LET i == incarnation[r] + 1 IN
  \/ "disk" \in LossKinds /\ Lose(r, i, 0, 0, Nobody, NothingNoted(r))
  \/ "votes" \in LossKinds /\ Lose(r, i, Len(log[r]), 0, Nobody, noted[r])
  \/ "frames" \in LossKinds /\ \E length \in 0..Len(log[r]) :
       Lose(r, i, length, term[r], vote[r][1], noted[r])
  \/ SetBack(r, i, image)

Next ==
  \/ Step /\ UNCHANGED <<losses, restarts, image>>
  \/ /\ restarts < RestartsMax /\ restarts' = restarts + 1 /\ UNCHANGED <<losses, image>>
     /\ \E r \in Replicas : End(r)
  \/ /\ losses < LossesMax /\ losses' = losses + 1 /\ UNCHANGED <<restarts, image>>
     /\ \E r \in Replicas : Forget(r)
     /\ Promised' \/ Unpromised
  \/ /\ "image" \in LossKinds /\ image = NoImage
     /\ \E r \in Replicas : image' = Image(r)
     /\ UNCHANGED <<vars, losses, restarts>>

Alike == IF Start = "led" THEN Founders \ {Leader} ELSE Founders
Symmetry == Permutations(Alike) \cup Permutations(Replicas \ Founders)
===============================================================================
