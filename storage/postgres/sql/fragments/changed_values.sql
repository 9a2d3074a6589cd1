$4, $5, $6, $7, $8::bigint, $9::bigint, $10::integer, $11::bigint, from_micros($12), from_micros($13),
from_micros($14), from_micros($15), from_micros($16), $17::jsonb, $18, $20::integer, $21, $22, feed_sequence + $19::bigint
