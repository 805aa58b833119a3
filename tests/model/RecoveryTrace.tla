---------------------------- MODULE RecoveryTrace ----------------------------
(* Runs of the real core as behaviours of Recovery: each event of a run must be a
   step that the model allows, and lead to the state in which the replica was
   seen. A run that is refused ends in a deadlock: no step does its next event.

   tests/model/traces.py records the events. *)
EXTENDS Recovery

CONSTANT Runs  \* sequences of events: <<what, replica, ...>>

VARIABLES run, at

Init ==
  /\ term = [r \in Replicas |-> 0]
  /\ vote = [r \in Replicas |-> NoVote]
  /\ log = [r \in Replicas |-> <<>>]
  /\ kept = [r \in Replicas |-> 0]
  /\ recovered = [r \in Replicas |-> FALSE]
  /\ incarnation = [r \in Replicas |-> 0]
  /\ noted = [r \in Replicas |-> NothingNoted(r)]
  /\ outdated = [r \in Replicas |-> FALSE]
  /\ candidacies = {} /\ grants = {} /\ joined = {} /\ barriers = {} /\ certificates = {}
  /\ office = [t \in Terms |-> {}]
  /\ ledger = [t \in Terms |-> <<>>]
  /\ acks = [t \in Terms |-> [r \in Replicas |-> 0]]
  /\ committed = [t \in Terms |-> 0]
  /\ run \in 1..Len(Runs)
  /\ at = 0

(* The file of a replica that starts again names a configuration that was committed. *)
MayHaveNoted(r, file) ==
  \/ file = NothingNoted(r) \/ file = noted[r]
  \/ \E t \in Terms : /\ committed[t] >= file[1] /\ file[1] > 0
                      /\ ledger[t][file[1]][2] = file[2]

IsCommitted(r, index) == index <= Len(log[r]) /\ \E t \in Terms :
  committed[t] >= index /\ ledger[t][index] = log[r][index]

(* By log matching there is only one. *)
LogWith(length, last) == IF length = 0 THEN <<>> ELSE SubSeq(ledger[last], 1, length)

Candidacy(t, r, i) == CHOOSE c \in candidacies :
  c.term = t /\ c.replica = r /\ c.incarnation = i

Is(r, t, v, whole, length, last, voters) ==
  /\ term[r] = t /\ vote[r][1] = v /\ recovered[r] = whole
  /\ Len(log[r]) = length /\ Last(log[r]) = last /\ InForce(r) = voters

Does(e) == LET r == e[2] IN
  CASE e[1] = "observe" -> Observe(r, e[3])
    [] e[1] = "campaign" -> Campaign(r, e[3], InForce(r))
    [] e[1] = "grant" -> /\ \E c \in candidacies : c.term = e[3] /\ c.replica = e[4] /\ c.incarnation = e[5]
                         /\ Grant(r, Candidacy(e[3], e[4], e[5]))
    [] e[1] = "win" -> /\ \E c \in candidacies : c.term = term[r] /\ c.replica = r /\ IsCandidate(c)
                       /\ Win(Candidacy(term[r], r, incarnation[r]))
    [] e[1] = "propose" -> /\ e[3] = {} \/ MayChange(r, e[3])
                           /\ Propose(r, e[3])
    [] e[1] = "follow" -> Follow(r, e[3], e[4])
    [] e[1] = "acknowledge" -> Acknowledge(r, e[3])
    [] e[1] = "meet" -> /\ term[r] > 0 /\ e[5] = Len(ledger[term[r]]) + 1
                        /\ Meet(r, e[3], e[4])
    [] e[1] = "recover" -> Recover(r)
    [] e[1] = "restart" -> MayHaveNoted(r, e[5]) /\ Restart(r, e[3], e[4], e[5])
    [] e[1] = "torn" -> MayHaveNoted(r, e[6]) /\ Torn(r, e[3], e[4], e[5], e[6])
    [] e[1] = "lose" -> MayHaveNoted(r, e[7]) /\ Lose(r, e[3], e[4], e[5], e[6], e[7])
    [] e[1] = "set back" -> MayHaveNoted(r, e[8]) /\ SetBack(r, e[3], [
         replica |-> r, log |-> LogWith(e[4], e[5]), kept |-> 0, term |-> e[6], vote |-> e[7],
         recovered |-> TRUE, noted |-> e[8]])
    [] e[1] = "recognise" -> Recognise(r, e[3])
    [] e[1] = "commit" -> IsCommitted(r, e[3]) /\ UNCHANGED vars
    [] e[1] = "is" -> Is(r, e[3], e[4], e[5], e[6], e[7], e[8]) /\ UNCHANGED vars

Next ==
  /\ UNCHANGED run
  /\ \/ at < Len(Runs[run]) /\ at' = at + 1
        (* Bound, and not only defined, or a prime would reach it. *)
        /\ \E e \in {Runs[run][at + 1]} : Does(e)
     \/ at = Len(Runs[run]) /\ UNCHANGED <<vars, at>>
===============================================================================
