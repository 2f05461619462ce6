package postgres

// Forget frees what is remembered of a resource that nobody here competes for:
// since when its lease stands still. It begins to count anew when somebody
// comes.
func (p *Provider) Forget(resource string) { p.forget(resource) }
