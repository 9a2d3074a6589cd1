-- A lease lies in a row of its own, so that a placement, which locks the nodes it uses, keeps no heartbeat waiting.
-- It is a counter: who judges it looks how long it has stood still on its own clock, and no clock is compared with
-- another machine's. lease_end is for people.
--
-- A node is known by its uid, a digest of a secret of its agent, and by the instance that holds its name: which boot
-- of which machine, and which state directory there. Empty: an agent that does not tell.

CREATE TABLE leases (
  node text COLLATE "C" PRIMARY KEY REFERENCES nodes ON DELETE CASCADE,
  incarnation text NOT NULL,
  beat bigint NOT NULL,
  held boolean NOT NULL,
  lease_end timestamptz NOT NULL,
  usage jsonb NOT NULL,
  disk_free_bytes bigint  -- NULL: not told
) WITH (fillfactor = 50);

INSERT INTO leases (node, incarnation, beat, held, lease_end, usage)
SELECT name, incarnation, 1, reachable, lease_end, usage FROM nodes;

ALTER TABLE nodes DROP COLUMN incarnation, DROP COLUMN lease_end, DROP COLUMN usage;
ALTER TABLE nodes ADD COLUMN uid text NOT NULL DEFAULT '', ADD COLUMN instance text NOT NULL DEFAULT '';
