-- What one transaction tells of a job is one row of its feed: a job that is placed and reports its whole life at once
-- has two, where it had five. The row has the sequence of its last item; items are in order, each with its own sequence,
-- as points of metrics may lie between them. The first item of a job, its submission, has a row only where its reason is
-- not that of all others: readers make it. A server that knows fewer migrations would miss these items, so that servers
-- are replaced together.

-- What is there satisfies both, and is not read again for it. The old one got its number in 0011, beside that of the
-- table before.
ALTER TABLE feed DROP CONSTRAINT feed_kind_check1;
ALTER TABLE feed
  ADD CONSTRAINT feed_kind CHECK (kind IN ('STATE', 'CHECKPOINT', 'ATTEMPT', 'NOTICE', 'ITEMS')) NOT VALID,
  ADD CONSTRAINT feed_items
    CHECK (jsonb_typeof(body) = CASE kind WHEN 'ITEMS' THEN 'array' ELSE 'object' END) NOT VALID;
