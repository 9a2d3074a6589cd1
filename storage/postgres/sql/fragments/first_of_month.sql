to_date($1, 'YYYY_MM')::timestamptz
