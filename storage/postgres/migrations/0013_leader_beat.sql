-- The leader's lease is a counter, as a node's is: a replica that waits looks how long it has stood still, on its own
-- clock. A trigger counts, so that the renewals of an older server, which knows only lease_end, count as well.

ALTER TABLE leader ADD COLUMN beat bigint NOT NULL DEFAULT 0;

CREATE FUNCTION count_beat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.beat := OLD.beat + 1;
  RETURN NEW;
END $$;
CREATE TRIGGER leader_beat BEFORE UPDATE ON leader FOR EACH ROW EXECUTE FUNCTION count_beat();
