package config

// Console configures the console that operators use with psql.
type Console struct {
	Database string `yaml:"database"` // the name by which clients ask for it
	Password string `yaml:"password"` // "" switches it off
}

func (c *Console) validate(fault Fault) {
	if c.Password != "" && (c.Database == "" || len(c.Database) > 63) {
		fault("console.database is %q, but console.password is set: name the database under which clients reach the console, in at most 63 bytes", c.Database)
	}
}
