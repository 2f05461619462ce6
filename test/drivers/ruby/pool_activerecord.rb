# The pool of ActiveRecord: ruby pool_activerecord.rb pool
# The Go package above describes what it does.
require "active_record"
require "json"

$stdout.sync = true
ActiveRecord::Base.establish_connection(adapter: "postgresql", pool: 3) # libpq finds the rest in its variables

class Work < ActiveRecord::Base
  self.table_name = "work"
end

# insert takes a connection and gives it back, as a request or a job of Rails does.
def insert
  ActiveRecord::Base.connection_pool.with_connection { Work.create!(what: "activerecord") }
  "ok"
rescue StandardError => e
  state = e.cause.result&.error_field(PG::Result::PG_DIAG_SQLSTATE) if e.cause.is_a?(PG::Error)
  state || e.class.name
end

silent = false
lines = Mutex.new
3.times do
  Thread.new do
    loop do
      unless silent
        result = insert
        lines.synchronize { puts({ scenario: "insert", result: result }.to_json) }
      end
      sleep 0.05
    end
  end
end
silent = !silent while $stdin.gets
sleep
